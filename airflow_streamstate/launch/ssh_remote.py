"""The other side of the SSH launcher: what runs on that host for one question, over the local launcher there.

``ssh_bootstrap`` starts it. It asks for its request by the word ``need: request``: one line of JSON on standard input;
for a launch that has not started yet it asks for the files, too, which come one after the other. It answers by the word
``answer`` or ``error``, and sends ``beat`` until then, which distinguishes long work from a host that hangs. A caller
that goes away ends nothing: what was asked for is done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, StreamStateError, UnavailableError
from airflow_streamstate.launch.detached import HANDLE
from airflow_streamstate.launch.folder import EXIT_STATUS, INTENT, translated
from airflow_streamstate.launch.interface import LaunchHandle, LaunchPlace, LaunchRequest
from airflow_streamstate.launch.local import LocalLauncher

HERE = "launch-folder:/"
"""The start of a path below the folder of the launch, which only this side knows."""
LOG = "driver.log"
BEAT_SECONDS = 2.0
_KEPT = frozenset({INTENT, HANDLE, EXIT_STATUS, LOG})
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_CHUNK = 1 << 20
_SPARE_BYTES = 32 << 20
"""What a launch needs in addition to the files that are sent: our code, and the first lines of its log."""

Say = Callable[..., None]


def serve(base: str, say: Say) -> None:
    """Take one request and answer it.

    Args:
        base: the folder for launches on this host.
        say: sends one word.
    """
    guard = threading.Lock()

    def tell(**word: object) -> None:
        with guard, contextlib.suppress(OSError):  # the caller may have gone, which ends nothing here
            say(**word)

    tell(need="request")
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return
    asked = json.loads(line)
    with _beating(tell):
        try:
            answer = Remote(Path(base), asked, sys.stdin.buffer, tell).answer()
        except StreamStateError as error:
            tell(error=error.to_json())
        except Exception as error:
            tell(crashed=f"{type(error).__name__}: {error}")
        else:
            tell(answer=answer)


def folder_of(base: str, place: LaunchPlace) -> str:
    """The folder of a launch below that for launches: of its scope and key alone, so that every caller finds it.

    Raises:
        InvalidRequestError: the key is no name of a folder.
    """
    if not _KEY.fullmatch(place.launch_key):
        raise InvalidRequestError(
            "this is no key of a launch",
            launch_key=place.launch_key,
            next_step="Use letters, digits, dots, dashes and underscores.",
        )
    scope = hashlib.sha256(place.scope.encode()).hexdigest()[:20]
    return f"{base}/launches/{scope}/{place.launch_key}"


class Remote:
    """One request on this host.

    Args:
        asked: ``verb``, its values, and ``environ``, which is added to this process's environment.
        stream: gives the bytes of files.
    """

    def __init__(self, base: Path, asked: Mapping[str, Any], stream: BinaryIO, say: Say) -> None:
        self._base = base
        self._asked = asked
        self._stream = stream
        self._say = say
        self._launcher = LocalLauncher(SYSTEM_CLOCK, environ={**os.environ, **asked["environ"]})

    def answer(self) -> object:
        """The answer to the request, as plain JSON."""
        verbs: dict[str, Callable[[], object]] = {
            "check": self._check,
            "spark_version": self._spark_version,
            "launch": self._launch,
            "find": self._find,
            "status": lambda: self._launcher.status(self._handle()).to_json(),
            "kill": lambda: self._launcher.kill(self._handle(), self._asked["grace_seconds"]).to_json(),
            "logs": lambda: self._launcher.logs(self._handle(), self._asked["tail_bytes"]),
            "forget": self._forget,
        }
        return verbs[self._asked["verb"]]()

    def _check(self) -> None:
        request = self._request()
        self._check_room(sum(size for _, size in self._asked["files"]))
        self._launcher.check(request)

    def _spark_version(self) -> str:
        return self._launcher.spark_version(self._request())

    def _launch(self) -> object:
        request = self._request()
        folder = Path(request.folder)
        known = self._launcher.find(request.place)
        if known is not None and known.data.keys() & {"pid", "closed"}:
            return known.data
        # Refused before anything is started: what is wrong there leaves no trace.
        self._launcher.check(replace(request, conf={**request.conf, "spark.streamstate.master.check": "none"}))
        self._say(need="files")
        self._receive(folder, self._asked["files"])
        try:
            # The folder is there only now.
            return self._launcher.launch(replace(request, working_folder=request.working_folder or str(folder))).data
        except InvalidRequestError:
            if self._launcher.find(request.place) is None:
                _remove_sent(folder, self._asked["files"])
            raise

    def _find(self) -> object:
        place = LaunchPlace.from_json(self._asked["place"])
        found = self._launcher.find(replace(place, folder=str(self._folder(place))))
        return None if found is None else found.data

    def _forget(self) -> None:
        handle = self._handle()
        if not self._launcher.status(handle).has_ended:
            return
        # What records that this key has had its driver stays, so that no second one can be started for it.
        folder = Path(str(handle.data["folder"]))
        with translated(folder):
            for item in folder.iterdir():
                if item.name in _KEPT:
                    continue
                if item.is_dir() and not item.is_symlink():
                    shutil.rmtree(item)
                else:
                    item.unlink(missing_ok=True)

    def _request(self) -> LaunchRequest:
        """The request with the paths of this host."""
        request = LaunchRequest.from_json(self._asked["request"])
        folder = self._folder(request.place)

        def here(paths: Sequence[str]) -> tuple[str, ...]:
            return tuple(path.replace(HERE, f"{folder}/", 1) if path.startswith(HERE) else path for path in paths)

        wanted = request.working_folder
        if wanted is not None and not Path(wanted).is_dir():
            raise InvalidRequestError(
                "the folder that the drivers of this deployment run in is not on that host",
                working_folder=wanted,
                next_step="Make it there, or name another one by `--working-folder FOLDER`; without one, drivers run in"
                " the folder of their launch.",
            )
        return replace(
            request,
            application=here([request.application])[0],
            py_files=here(request.py_files),
            files=here(request.files),
            jars=here(request.jars),
            folder=str(folder),
            log_path=str(folder / LOG),
        )

    def _folder(self, place: LaunchPlace) -> Path:
        return Path(folder_of(str(self._base), place))

    def _handle(self) -> LaunchHandle:
        """The driver of a place: its folder has its process and its end, so that a caller names neither."""
        place = LaunchPlace.from_json(self._asked["place"])
        folder = self._folder(place)
        data = {"launch_key": place.launch_key, "folder": str(folder), "log_path": str(folder / LOG)}
        return LaunchHandle(launcher=LocalLauncher.name, launch_key=place.launch_key, data=data)

    def _check_room(self, size: int) -> None:
        with translated(self._base):
            free = shutil.disk_usage(self._base).free
        if free < size + _SPARE_BYTES:
            raise UnavailableError(
                "the disk of that host has no room for the files of a driver",
                work_dir=str(self._base),
                free_bytes=free,
                next_step="Make room there, or name another folder by the option work_dir.",
            )

    def _receive(self, folder: Path, files: Sequence[Sequence[Any]]) -> None:
        """Write what comes, each file atomically, for its owner only."""
        for name, size in files:
            target = folder / name
            with translated(target):
                for place in (folder, target.parent):
                    place.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor, temporary = tempfile.mkstemp(prefix=".sent.", dir=target.parent)
                try:
                    with os.fdopen(descriptor, "wb") as file:
                        for chunk in self._chunks(size):
                            file.write(chunk)
                        file.flush()
                        os.fsync(file.fileno())
                    Path(temporary).replace(target)
                finally:
                    Path(temporary).unlink(missing_ok=True)

    def _chunks(self, size: int) -> Iterator[bytes]:
        while size:
            chunk = self._stream.read(min(size, _CHUNK))
            if not chunk:
                raise UnavailableError("the caller went away while it sent the files of a driver")
            size -= len(chunk)
            yield chunk


def _remove_sent(folder: Path, files: Sequence[Sequence[Any]]) -> None:
    """Remove what was sent, and nothing that another caller may have started."""
    with contextlib.suppress(OSError):
        for top in {name.partition("/")[0] for name, _ in files}:
            shutil.rmtree(folder / top)
        folder.rmdir()


@contextlib.contextmanager
def _beating(say: Say) -> Iterator[None]:
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_SECONDS):
            say(beat=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
