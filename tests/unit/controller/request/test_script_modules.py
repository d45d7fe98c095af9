"""What a script imports from its own folder, found without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.request import scripts
from airflow_streamstate.controller.request.scripts import modules_beside
from airflow_streamstate.errors import InvalidRequestError


def written(folder: Path, **texts: str) -> Path:
    """Files by name, with ``/`` written as ``__of__`` and without ``.py``; returns the script ``job.py``."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__of__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "job.py"


def names(script: Path, patterns: tuple[str, ...] | None = None) -> list[str]:
    return [module.name for module in modules_beside(script, patterns)]


def test_modules_and_packages_are_found_through_each_other(tmp_path: Path) -> None:
    """Whole packages, relative imports, and nothing that is not imported. (Law 15)"""
    script = written(
        tmp_path,
        job="import os, helpers\nfrom lib.rules import big\n",
        helpers="from shared import x\n",
        shared="x = 1\n",
        unused="y = 1\n",
        lib__of____init__="",
        lib__of__rules="from . import base\nfrom ..nowhere import z\nbig = base\n",
        lib__of__base="",
        lib__of__deep__of____init__="",
        lib__of__deep__of__more="import far\n",
        far="",
    )
    (tmp_path / "lib" / "__pycache__").mkdir()
    (tmp_path / "lib" / "__pycache__" / "rules.cpython-311.pyc").write_bytes(b"x")
    (tmp_path / "lib" / "table.csv").write_text("a")
    assert names(script) == [
        "far.py",
        "helpers.py",
        "lib/__init__.py",
        "lib/base.py",
        "lib/deep/__init__.py",
        "lib/deep/more.py",
        "lib/rules.py",
        "shared.py",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module('plug')\n",
        "__import__('plug')\n",
        "def later():\n    import plug\n",
        "try:\n    import plug\nexcept ImportError:\n    pass\n",
        "if False:\n    from plug import a\n",
        "from plug.more import a\n",
    ],
)
def test_an_import_is_found_wherever_it_stands(tmp_path: Path, text: str) -> None:
    """In functions, under conditions, and by a function that takes a name."""
    assert names(written(tmp_path, job=text, plug="")) == ["plug.py"]


def test_what_is_no_module_of_the_folder_is_left_out(tmp_path: Path) -> None:
    """Installed modules, names that Python cannot import, and code with an error in it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.json").write_text("{}")
    script = written(tmp_path, job="import json, data, broken\nfrom . import gone\n", broken="def (:\n")
    assert names(script) == ["broken.py"]
    script.write_text("def (:\n")
    assert names(script) == []


def test_a_script_that_imports_itself_is_a_module_too(tmp_path: Path) -> None:
    """As Python loads it: a second time, under its own name."""
    assert names(written(tmp_path, job="import job\nimport helpers\n", helpers="import job\n")) == [
        "helpers.py",
        "job.py",
    ]


def test_a_link_to_a_folder_inside_a_package_is_not_followed(tmp_path: Path) -> None:
    """Such a link may lead to the whole disk; a module that is a link is read, and so is a package."""
    elsewhere = tmp_path / "elsewhere"
    written(elsewhere, common="", pack__of____init__="import common\n")
    folder = tmp_path / "jobs"
    script = written(folder, job="import common\nimport pack\nimport lib.rules\n", lib__of__rules="")
    (folder / "common.py").symlink_to(elsewhere / "common.py")
    (folder / "pack").symlink_to(elsewhere / "pack")
    (folder / "lib" / "root").symlink_to("/")
    assert names(script) == ["common.py", "lib/rules.py", "pack/__init__.py"]


def test_of_a_link_that_leads_up_only_what_an_import_names_is_taken(tmp_path: Path) -> None:
    """A link to ``/``, to the script's folder or to one above it is no package, and may lead around in circles."""
    folder = tmp_path / "jobs"
    script = written(
        folder,
        job="import root\nimport here.here.helpers\nfrom lib.up import rules\nimport lost\n",
        helpers="x = 1\n",
        unused="",
        lib__of__rules="",
        rules="",
    )
    (folder / "root").symlink_to("/")
    (folder / "here").symlink_to(".")
    (folder / "lib" / "up").symlink_to("..")
    (folder / "lost").symlink_to("lost")
    assert names(script) == ["here/here/helpers.py", "lib/rules.py", "lib/up/rules.py"]


def test_a_module_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is refused before its imports are looked for."""
    script = written(tmp_path, job="import rows\n", rows="x = 1\n" * 9)
    monkeypatch.setattr("airflow_streamstate.controller.request.scripts.MAX_BYTES", 20)
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("read") if path.name == "rows.py" else read(path))
    with pytest.raises(InvalidRequestError, match="too large to be pinned"):
        names(script)


def test_a_script_behind_a_link_has_the_folder_that_the_link_leads_to(tmp_path: Path) -> None:
    """As Python has it."""
    real = written(tmp_path / "v1", job="import helpers\n", helpers="")
    (tmp_path / "job.py").symlink_to(real)
    assert names(tmp_path / "job.py") == ["helpers.py"]


def test_patterns_take_the_place_of_what_is_imported(tmp_path: Path) -> None:
    """Files and whole folders; nothing outside of the script's folder."""
    script = written(tmp_path, job="import a\n", a="", b="", lib__of__c="", lib__of__d__of__e="")
    assert names(script, ("b.py", "lib")) == ["b.py", "lib/c.py", "lib/d/e.py"]
    assert names(script, ("lib/*.py",)) == ["lib/c.py"]
    for pattern, fact in (("nothing*", "no file"), ("../*.py", "below the script's folder"), ("/etc/*", "below")):
        with pytest.raises(InvalidRequestError, match=fact):
            names(script, (pattern,))


def test_too_much_is_refused_with_what_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the folder, what it holds, and the option."""
    script = written(tmp_path, job="import lib\n", **{f"lib__of__m{number}": "x = 1\n" for number in range(9)})
    monkeypatch.setattr("airflow_streamstate.controller.request.scripts.MAX_BYTES", 20)
    with pytest.raises(InvalidRequestError, match="too large to be pinned") as refused:
        names(script)
    assert refused.value.context["holds"] == ["lib"]
    assert "--modules" in str(refused.value)


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the answer of the disk is given here."""
    script = written(tmp_path, job="import lib\n", lib__of__rules="")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(InvalidRequestError, match="cannot be read") as refused:
        names(script)
    assert refused.value.context == {"path": str(tmp_path / "lib"), "reason": "Permission denied"}


def test_a_compiled_module_is_pinned_as_it_is(tmp_path: Path) -> None:
    """It is found by its name like any other, and not read for imports."""
    script = written(tmp_path, job="import fast\n")
    (tmp_path / "fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    assert names(script) == ["fast.cpython-311-x86_64-linux-gnu.so"]


def test_the_limits_are_those_of_a_folder_of_code() -> None:
    """Far above what a folder of scripts has."""
    assert (scripts.MAX_FILES, scripts.MAX_BYTES) == (2_000, 100_000_000)
