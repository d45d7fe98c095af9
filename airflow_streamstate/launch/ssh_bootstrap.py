"""Sent to a host and run there: puts our code into its place, and hands over to ``ssh_remote``.

Any Python since 3.6 can run it, so that one that is too old can be reported. It talks by lines on stdout, each a JSON
object after MARK, which distinguishes it from what a login prints. Standard input has one line ``{"base", "code",
"size", "files", "bytes"}``; then, if it was asked for, the code as a zip of that size, which contains that number of
files and bytes; what follows is for ``ssh_remote``.
"""

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

MARK = "\x1estreamstate "
_DISK_ERRORS = (5, 28, 122)  # EIO, ENOSPC, EDQUOT


def say(**word: object) -> None:
    """Send one word, by one write."""
    sys.stdout.write("\n" + MARK + json.dumps(word) + "\n")
    sys.stdout.flush()


def refuse(kind: str, message: str, next_step: str, **context: object) -> None:
    """Answer with an error, as ``StreamStateError.to_json``."""
    say(error={"type": kind, "message": message, "context": context, "next_step": next_step})


def unpacked(base: Path, head: dict) -> Path:  # type: ignore[type-arg]
    """The folder with this code, put there if it is not: complete or absent."""
    place = base / "code" / str(head["code"])
    wanted = (head["files"], head["bytes"])
    if place.is_dir():
        if held(place) == wanted:
            return place
        # A machine that lost its power, or a hand: what was not flushed is gone.
        discard(place)
    for folder in (base, place.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    say(need="code")
    body = sys.stdin.buffer.read(head["size"])
    if len(body) < head["size"]:
        sys.exit(0)  # the caller has gone
    temporary = Path(tempfile.mkdtemp(prefix=".code.", dir=str(place.parent)))
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            archive.extractall(str(temporary))
        temporary.rename(place)
    except OSError:
        shutil.rmtree(str(temporary), ignore_errors=True)
        if not place.is_dir():  # else another caller was faster
            raise
    return place


def held(place: Path) -> tuple:  # type: ignore[type-arg]
    """How many files the folder holds, and their bytes; without what Python adds."""
    count = size = 0
    for folder, folders, names in os.walk(str(place)):
        folders[:] = [name for name in folders if name != "__pycache__"]
        count += len(names)
        size += sum((Path(folder) / name).stat().st_size for name in names)
    return count, size


def discard(place: Path) -> None:
    """Remove the folder, from its name at once; unless another caller does."""
    aside = Path(tempfile.mkdtemp(prefix=".code.", dir=str(place.parent)))
    with contextlib.suppress(OSError):
        place.rename(aside)
    shutil.rmtree(str(aside), ignore_errors=True)


def main() -> None:
    """Answer one request."""
    if sys.version_info < (3, 11):
        refuse(
            "InvalidRequestError",
            "the Python of that host is too old",
            "Install Python 3.11 or later there, and name it by the option python.",
            python=sys.executable,
            version=".".join(map(str, sys.version_info[:3])),
        )
        return
    head = json.loads(sys.stdin.buffer.readline().decode())
    base = Path(head["base"])
    try:
        base = base.expanduser()
        sys.path.insert(0, str(unpacked(base, head)))
    except OSError as error:
        refuse(
            "UnavailableError" if error.errno in _DISK_ERRORS else "InvalidRequestError",
            "the folder for launches on that host cannot be written",
            "Make room or correct its permissions there, or name another folder by the option work_dir.",
            work_dir=str(base),
            reason=(error.strerror or type(error).__name__).lower(),
        )
        return
    from airflow_streamstate.launch.ssh_remote import serve

    serve(str(base), say)


if __name__ == "__main__":
    main()
