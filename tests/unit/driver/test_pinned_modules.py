"""Imports of a script from its own folder."""

from __future__ import annotations

import importlib
import json
import linecache
import pkgutil
import py_compile
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.driver.script import PinnedModules, take_out_own_frames


class Folders:
    """The script's folder, the folder of its launch, and what was found."""

    def __init__(self, root: Path) -> None:
        self.own = root / "jobs"
        self.placed = root / "launch" / "code"
        self.found: dict[str, bytes] = {}

    def put(self, folder: Path, **texts: str) -> None:
        for name, text in texts.items():
            path = folder / f"{name.replace('__of__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def begin(self, *names: str) -> PinnedModules:
        modules = PinnedModules(self.placed, self.own, names, self.found.__setitem__)
        modules.install()
        sys.path[0] = str(self.own)
        return modules


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    """What the imports of a test leave in this process is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield Folders(tmp_path)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_pinned_bytes_run_under_the_path_of_the_folder(folders: Folders) -> None:
    """Whatever is there by now; a traceback shows the lines that ran. (Law 15)"""
    folders.put(folders.own, zz_mod="x = 'changed'\n", zz_pack__of____init__="", zz_pack__of__in_it="y = 'changed'\n")
    folders.put(folders.placed, zz_mod="x = 'pinned'\n", zz_pack__of____init__="from zz_pack.in_it import y\n",
                zz_pack__of__in_it="y = 'pinned'\n")  # fmt: skip
    folders.begin("zz_mod.py", "zz_pack/__init__.py", "zz_pack/in_it.py")
    module, package = importlib.import_module("zz_mod"), importlib.import_module("zz_pack")
    assert (module.x, package.y) == ("pinned", "pinned")
    assert module.__file__ == str(folders.own / "zz_mod.py")
    assert list(package.__path__) == [str(folders.own / "zz_pack")]
    assert linecache.getline(str(folders.own / "zz_mod.py"), 1) == "x = 'pinned'\n"
    assert folders.found == {}


def test_what_an_earlier_run_compiled_is_not_taken_for_the_pinned_bytes(folders: Folders) -> None:
    """Python keeps it next to the current file. (Law 15)"""
    folders.put(folders.own, zz_mod="x = 'changed'\n")
    folders.put(folders.placed, zz_mod="x = 'pinned'\n")
    assert Path(py_compile.compile(str(folders.own / "zz_mod.py"), doraise=True)).exists()
    folders.begin("zz_mod.py")
    assert importlib.import_module("zz_mod").x == "pinned"


@pytest.mark.parametrize(
    "body",
    [b"def f(:\n", b"x = '\xff'\n", b"x = 1\0\n", b"\n1 / 0\n", b"import zz_missing\n", b"from math import zz\n"],
)
def test_a_damaged_module_is_told_as_python_tells_it(folders: Folders, body: bytes) -> None:
    """The same traceback, without a frame of this package or of Python's import system."""
    for folder in (folders.own, folders.placed):
        folders.put(folder, zz_mod="")
        (folder / "zz_mod.py").write_bytes(body)
    sys.path.insert(0, str(folders.own))
    bare = failure_of_import("zz_mod")
    folders.begin("zz_mod.py")
    ours = failure_of_import("zz_mod")
    assert ours == bare
    assert "frozen" not in ours


def failure_of_import(name: str) -> str:
    """The traceback of an import that fails."""
    importlib.invalidate_caches()
    try:
        exec(f"import {name}", {})  # noqa: S102 - Python shortens tracebacks of the statement alone
    except Exception as error:
        take_out_own_frames(error)
        return "".join(traceback.format_exception(error))
    return ""


def test_the_folder_itself_may_be_gone(folders: Folders) -> None:
    """A driver on another machine has the pinned files alone."""
    folders.put(
        folders.placed, zz_mod="import zz_space.deep.leaf as leaf\nx = leaf.x\n", zz_space__of__deep__of__leaf="x = 1\n"
    )
    folders.begin("zz_mod.py", "zz_space/deep/leaf.py")
    assert importlib.import_module("zz_mod").x == 1


def test_what_is_loaded_on_the_way_is_pinned_then(folders: Folders) -> None:
    """Also behind a path that the script adds; the next attempt runs the same bytes. (Law 15)"""
    folders.put(folders.own, zz_plug="x = 1\n", lib__of__zz_tool="from zz_plug import x\n")
    folders.placed.mkdir(parents=True)
    folders.begin()
    sys.path.insert(0, str(folders.own / "lib"))
    assert importlib.import_module("zz_tool").x == 1
    assert folders.found == {"lib/zz_tool.py": b"from zz_plug import x\n", "zz_plug.py": b"x = 1\n"}
    folders.put(folders.own, zz_plug="x = 2\n")
    folders.begin(*folders.found)  # as the next attempt: what was found is loaded again
    sys.path.insert(0, str(folders.own / "lib"))
    assert importlib.import_module("zz_tool").x == 1


def test_data_of_a_package_is_read_where_it_lies(folders: Folders) -> None:
    """The loader gives the pinned bytes for the module alone."""
    folders.put(folders.placed, zz_pack__of____init__="")
    folders.put(folders.own, zz_pack__of____init__="")
    (folders.own / "zz_pack" / "table.json").write_text("[1]")
    folders.begin("zz_pack/__init__.py")
    assert json.loads(pkgutil.get_data("zz_pack", "table.json") or b"") == [1]


def test_an_installed_package_wins_over_a_folder_of_its_name(folders: Folders) -> None:
    """A folder without ``__init__`` is a package only if there is no other, as Python has it."""
    folders.put(folders.placed, rich__of__rows="x = 1\n", zz_space__of__rows="x = 1\n")
    folders.begin("rich/rows.py", "zz_space/rows.py")
    sys.modules.pop("rich", None)
    assert "site-packages" in str(importlib.import_module("rich").__file__)
    assert importlib.import_module("zz_space.rows").x == 1


def test_what_is_not_of_the_folder_is_left_to_python(folders: Folders) -> None:
    """Packages installed below it, and what is in the folder of the launch."""
    folders.put(folders.own / "venv" / "site-packages", zz_installed="x = 1\n")
    launch = folders.own / "home" / "launch"
    folders.placed = launch / "code"
    folders.put(launch / "code" / "py-files", zz_given="x = 1\n")
    folders.begin()
    sys.path += [str(folders.own / "venv" / "site-packages"), str(launch / "code" / "py-files")]
    for name in ("zz_installed", "zz_given"):
        assert importlib.import_module(name).x == 1
    assert folders.found == {}
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("zz_nowhere")


def test_a_compiled_module_is_loaded_from_where_it_is_placed(folders: Folders) -> None:
    """One of Python's own, under another folder."""
    found = importlib.util.find_spec("_bisect")  # type: ignore[attr-defined]
    if found is None or not str(found.origin).endswith(".so"):
        pytest.skip("this Python has _bisect built in")
    name = Path(found.origin).name
    folders.placed.mkdir(parents=True)
    (folders.placed / name).write_bytes(Path(found.origin).read_bytes())
    code = f"""
import sys
from pathlib import Path
from airflow_streamstate.driver.script import PinnedModules
PinnedModules(Path({str(folders.placed)!r}), Path({str(folders.own)!r}), [{name!r}], print).install()
sys.path[0] = {str(folders.own)!r}
sys.modules.pop("_bisect", None)
import _bisect
print(_bisect.__file__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(folders.placed / name)
