"""Scripts, and items of ``py_files``: modules, zips, eggs, wheels and folders."""

from __future__ import annotations

import importlib
import io
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_streamstate.control.artifacts import materialise
from airflow_streamstate.controller.request import scripts
from airflow_streamstate.controller.request.scripts import CodeFile, jar_files, py_file, script_file
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.base import ObjectInfo
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import PIECE_BYTES


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x = 1\n")
    return path


def test_a_folder_becomes_a_zip_of_what_is_importable(tmp_path: Path) -> None:
    """Equal content makes equal bytes, wherever it is; hidden files and caches are left out. (Law 15)"""
    for place in ("a", "b"):
        folder = tmp_path / place / "shared"
        (folder / "pack" / "__pycache__").mkdir(parents=True)
        (folder / "pack" / "__init__.py").write_text("")
        (folder / "pack" / "table.json").write_text("{}")
        (folder / "pack" / "__pycache__" / "x.pyc").write_bytes(b"x")
        (folder / ".git").mkdir()
        (folder / ".git" / "config").write_text("secret")
    first, second = py_file(tmp_path / "a" / "shared"), py_file(tmp_path / "b" / "shared")
    assert first.artifact == second.artifact
    assert first.name == "shared.zip"
    with zipfile.ZipFile(io.BytesIO(first.read())) as archive:
        assert archive.namelist() == ["pack/", "pack/__init__.py", "pack/table.json"]


def test_a_package_without_init_is_imported_from_the_zip_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from the folder itself."""
    (tmp_path / "shared" / "yy_in_zip" / "deep").mkdir(parents=True)
    (tmp_path / "shared" / "yy_in_zip" / "deep" / "leaf.py").write_text("x = 1\n")
    (tmp_path / "shared.zip").write_bytes(py_file(tmp_path / "shared").read())
    monkeypatch.setattr(sys, "path", [str(tmp_path / "shared.zip"), *sys.path])
    for name in ("yy_in_zip", "yy_in_zip.deep", "yy_in_zip.deep.leaf"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert importlib.import_module("yy_in_zip.deep.leaf").x == 1


def test_archives_keep_their_bytes(tmp_path: Path) -> None:
    """A wheel gets the ending by which Spark gives it to every Python process."""
    for name, placed in (
        ("a.zip", "a.zip"),
        ("b.egg", "b.egg"),
        ("c-1-py3-none-any.whl", "c-1-py3-none-any.whl.zip"),
        ("d.jar", "d.jar"),
    ):
        path = zipped(tmp_path / name, "mod.py")
        assert py_file(path).name == placed
        assert py_file(path).read() == path.read_bytes()
    module = tmp_path / "mod.py"
    module.write_text("x = 1\n")
    assert (py_file(module).name, py_file(module).read()) == ("mod.py", b"x = 1\n")


def test_what_cannot_be_imported_from_a_zip_is_refused(tmp_path: Path) -> None:
    """A damaged archive, a wheel and a folder with a compiled module, and what is not there."""
    (tmp_path / "bad.whl").write_bytes(b"no zip")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "fast.so").write_bytes(b"\x7fELF")
    wheel = zipped(tmp_path / "c-1-cp311-cp311-linux_x86_64.whl", "c/fast.so")
    for path, fact in (
        (tmp_path / "bad.whl", "cannot be read as a zip"),
        (tmp_path / "folder", "compiled module"),
        (wheel, "compiled module"),
        (zipped(tmp_path / "d-1-py3-none-win_amd64.whl", "d.py", "d.libs/z.dll"), "compiled module"),
        (zipped(tmp_path / "e-1-py3-none-manylinux1_x86_64.whl", "e.py", "e/libz.so.1.2"), "compiled module"),
        (zipped(tmp_path / "f-1-py3-none-any.whl", "f-1.data/purelib/f.py"), "only once it is installed"),
        (zipped(tmp_path / "code.tar.gz", "g.py"), "no Python code that Spark"),
    ):
        with pytest.raises(InvalidRequestError, match=fact):
            py_file(path)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        py_file(tmp_path / "gone.py").read()


@pytest.mark.parametrize("name", ["missing.py", ".", "job.py/inside"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    """The error names the path and the reason."""
    (tmp_path / "job.py").write_text("print(1)\n")
    with pytest.raises(InvalidRequestError) as caught:
        CodeFile("job.py", tmp_path / name).read()
    assert caught.value.context["path"] == str(tmp_path / name)
    assert caught.value.context["reason"]


@pytest.mark.parametrize(
    ("name", "body", "fact"),
    [
        ("job.ipynb", b"", "is a notebook"),
        ("job.py", b' {"cells": [], "metadata": {}, "nbformat": 4}', "is a notebook"),
        ("job.py", b"PK\x03\x04\0\0", "no Python script"),
        ("job.py", "print(1)\n".encode("utf-16"), "no Python script"),
        ("job.py", b"", "has no statement"),
        ("job.py", b'# nothing\n"""Only a text."""\n', "has no statement"),
        ("job.py", b"print(1)  # and more than twenty bytes\n", "too large for a script"),
    ],
)
def test_what_cannot_be_a_script_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: bytes, fact: str
) -> None:
    """Before a driver starts; the error names the file."""
    if "large" in fact:
        monkeypatch.setattr(scripts, "MAX_BYTES", 20)
    (tmp_path / name).write_bytes(body)
    with pytest.raises(InvalidRequestError, match=fact) as refused:
        script_file(tmp_path / name)
    assert refused.value.context == {"path": str(tmp_path / name)}
    assert refused.value.next_step


@pytest.mark.parametrize(
    "body",
    [
        b"import jobs\n",
        b"def f(:\n",  # the driver's Python may know more than this one
        b'{"nbformat": 4}["nbformat"]\n',
        b"# -*- coding: latin-1 -*-\nx = '\xe4'\n",
    ],
)
def test_a_script_that_some_python_may_run_is_left_to_it(tmp_path: Path, body: bytes) -> None:
    """Under any name, also behind a link."""
    (tmp_path / "über uns").write_bytes(body)
    (tmp_path / "job").symlink_to(tmp_path / "über uns")
    assert script_file(tmp_path / "job").read() == body


def test_a_folder_that_is_too_large_for_py_files_is_refused_by_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--modules`` takes only what is next to the script, so the refusal does not name it."""
    (tmp_path / "deep").mkdir()
    for name in ("a.py", "deep/b.py", "deep/c.py"):
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(scripts, "MAX_FILES", 2)
    with pytest.raises(InvalidRequestError, match="too large to be pinned") as refused:
        py_file(tmp_path)
    assert refused.value.context["holds"] == ["a.py", "deep"]
    assert "--modules" not in str(refused.value)


def test_jars_of_this_machine_are_files_and_uris_stay(tmp_path: Path) -> None:
    """A wildcard is what it matches; a scheme means a place that every machine reads."""
    for name in ("a.jar", "b.jar", "c:d.jar"):
        (tmp_path / name).write_bytes(name.encode())
    uris = ("s3a://bucket/x.jar", "local:///opt/x.jar", "file:/opt/x.jar", "hdfs:/x.jar")
    found = jar_files((*uris, f"{tmp_path}/[ab].jar", str(tmp_path / "c:d.jar")))
    assert found == (*uris, *(CodeFile(name, tmp_path / name) for name in ("a.jar", "b.jar", "c:d.jar")))


def test_two_jars_of_one_name_are_refused(tmp_path: Path) -> None:
    """As two files are: a driver would get one of them."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jar").write_text(folder)
    with pytest.raises(InvalidRequestError, match="same name"):
        jar_files((f"{tmp_path}/one/x.jar", f"{tmp_path}/two/x.jar"))
    assert jar_files((f"{tmp_path}/one/x.jar", "s3a://b/x.jar"))


def test_a_large_file_is_pinned_in_pieces(tmp_path: Path) -> None:
    """It is read no more than a piece at a time, and once more where it is in the home; its bytes arrive whole."""
    home, large = LocalStore(tmp_path / "home"), tmp_path / "large.jar"
    large.write_bytes(bytes(range(256)) * (PIECE_BYTES // 256) * 2 + b"the end")
    artifact = CodeFile("large.jar", large).pin(home, "orders")
    assert artifact == CodeFile("large.jar", large).pin(home, "orders") == CodeFile("large.jar", large).artifact
    assert materialise(home, "orders", artifact, tmp_path / "launch").read_bytes() == large.read_bytes()


@pytest.mark.parametrize("body", [b"y" * (2 * PIECE_BYTES), b"x" * (2 * PIECE_BYTES + 1), b"x" * PIECE_BYTES])
def test_a_large_file_that_changes_while_it_is_pinned_is_not_pinned(tmp_path: Path, body: bytes) -> None:
    """Whatever is under a digest has it (Law 15)."""
    home, large = MemoryStore(), tmp_path / "large.jar"
    large.write_bytes(b"x" * (2 * PIECE_BYTES))
    file = CodeFile("large.jar", large)
    assert file.artifact.name == "large.jar"

    class Grows(MemoryStore):
        def head(self, key: str) -> ObjectInfo | None:
            large.write_bytes(body)
            return home.head(key)

    with pytest.raises(InvalidRequestError, match="was changed"):
        file.pin(Grows(), "orders")
    assert list(home.list_objects("")) == []
