"""The driver's code: its packages as one zip for ``--py-files``, and the script that starts them.

This package need not be installed where the driver runs: the zip has its metadata too, by which connectors are found.
Equal packages make equal bytes: entries are sorted, their times fixed, and nothing is compressed (zlib's output differs
between versions).
"""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.folder import write_file

if TYPE_CHECKING:
    from importlib.abc import Traversable

PACKAGE = "airflow_streamstate"
DISTRIBUTION = "airflow-streamstate"
TRAVELLING = (
    *("older_python", "errors", "frozen", "clock", "migration", "retry", "protocol", "store", "control"),
    *("checkpoint", "snapshot", "plan", "connectors", "sources", "driver"),
)
_LAUNCHING = (*TRAVELLING, "launch")
ZIP_NAME = "airflow_streamstate_runtime.zip"
RUNNER_NAME = "runner.py"
LEAD_NAME = "lead.sh"

# With the guard, a process that imports the main script again (multiprocessing's spawn) does not run the job again.
RUNNER = """\
if __name__ == "__main__":
    import sys

    from airflow_streamstate.driver.main import main

    sys.exit(main())
"""

_OLDEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def build_driver_zip(target: Path) -> str:
    """Write the zip of the travelling packages, as installed, atomically; returns the hex sha256 of its bytes.

    Raises:
        InvalidRequestError, UnavailableError: it cannot be written there, or the package is not installed.
    """
    body = driver_zip_bytes()
    write_file(target, body)
    return hashlib.sha256(body).hexdigest()


def write_runner(target: Path) -> None:
    """Write the script that ``spark-submit`` gets as its application; raises as ``build_driver_zip`` does."""
    write_file(target, RUNNER.encode())


def driver_zip_bytes(*, deflated: bool = False) -> bytes:
    """The zip; ``deflated``: a third of the size, and not the same bytes with every zlib."""
    return zip_bytes((*_sources(importlib.resources.files(PACKAGE)), *_metadata()), deflated=deflated)


def launcher_zip_bytes() -> bytes:
    """The zip of what launches drivers on another host: what travels to drivers, and the room of the launchers."""
    package = importlib.resources.files(PACKAGE)
    lead = f"launch/{LEAD_NAME}"
    led = (f"{PACKAGE}/{lead}", (package / lead).read_bytes())
    return zip_bytes((*_sources(package, _LAUNCHING), led, *_metadata()), deflated=True)


def zip_bytes(entries: Iterable[tuple[str, bytes]], *, deflated: bool = False) -> bytes:
    """A zip of these names and bodies; the same for the same entries, in whatever order they come.

    Folders have entries, too: Python imports a package without ``__init__`` from a zip only if its folder has an entry.
    """
    bodies = dict(entries)
    folders = {f"{parent}/" for name in bodies for parent in PurePosixPath(name).parents} - {"./"}
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name in sorted({*bodies, *folders}):
            entry = zipfile.ZipInfo(name, _OLDEST_ZIP_TIME)
            entry.create_system = 3
            entry.external_attr = (0o40755 if name in folders else 0o100644) << 16
            archive.writestr(entry, bodies.get(name, b""), kind)
    return buffer.getvalue()


def _sources(package: Traversable, rooms: Iterable[str] = TRAVELLING) -> Iterator[tuple[str, bytes]]:
    yield f"{PACKAGE}/__init__.py", (package / "__init__.py").read_bytes()
    for room in rooms:
        module = package / f"{room}.py"
        if module.is_file():
            yield f"{PACKAGE}/{room}.py", module.read_bytes()
        elif (package / room).is_dir():
            yield from _folder_sources(package / room, f"{PACKAGE}/{room}")


def _metadata() -> Iterator[tuple[str, bytes]]:
    """What ``importlib.metadata`` needs, written here so that every kind of installation makes the same bytes."""
    import importlib.metadata

    try:
        installed = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise InvalidRequestError(
            "airflow-streamstate is not installed here, it is only on the path",
            next_step="Install it with pip: its metadata lists which connectors of sources and sinks it has.",
        ) from None
    points = {(point.group, point.name, point.value) for point in installed.entry_points}
    groups = sorted({group for group, _, _ in points if group.startswith(f"{PACKAGE}.")})
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for of, name, value in sorted(points) if of == group)
        for group in groups
    ]
    folder = f"{PACKAGE}-{installed.version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {installed.version}\n"
    yield f"{folder}/METADATA", head.encode()
    yield f"{folder}/entry_points.txt", "".join(sections).encode()


def _folder_sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir() and item.name != "__pycache__":
            yield from _folder_sources(item, f"{path}/{item.name}")
        elif item.name.endswith(".py"):
            yield f"{path}/{item.name}", item.read_bytes()
