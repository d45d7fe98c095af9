"""A real S3 server on loopback: versitygw at a pinned version, built once with Go and kept in the user's cache."""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import go_program
from support.loopback import free_port

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
START_SECONDS = 30
_PR_SET_PDEATHSIG = 1
_folders: dict[str, Path] = {}


def find_or_build() -> Path | None:
    """The server's program, built if it is not there yet; None on a machine without Go."""
    return go_program.find_or_build("versitygw", VERSION, MODULE)


@contextmanager
def versitygw(program: Path, access_key: str, secret_key: str, region: str, users: Path | None = None) -> Iterator[str]:
    """A running server over an empty folder; gives its endpoint URL. It is gone afterwards, also after a failure.

    Args:
        users: a folder for users besides the one of these keys; None: no others.
    """
    with tempfile.TemporaryDirectory(prefix="versitygw-") as place:
        objects, metadata = Path(place) / "objects", Path(place) / "metadata"
        objects.mkdir()
        keeps_metadata = ["--sidecar", str(metadata)]
        if _has_extended_attributes(objects):
            keeps_metadata = []
        else:
            metadata.mkdir()
        port = free_port()
        log = (Path(place) / "log").open("w+")
        process = subprocess.Popen(
            [
                str(program),
                *("--access", access_key, "--secret", secret_key, "--region", region),
                *("--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive"),
                *(() if users is None else ("--iam-dir", str(users))),
                *("posix", *keeps_metadata, str(objects)),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_the_test,
        )
        try:
            _wait_until_it_answers(process, port, Path(place) / "log")
            _folders[f"http://127.0.0.1:{port}"] = objects
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)
            log.close()


def folder_of(endpoint_url: str) -> Path:
    """The folder in which a running server keeps each bucket as a folder, and each object as a file."""
    return _folders[endpoint_url]


def die_with_the_test() -> None:
    """For ``preexec_fn``: the kernel ends the server when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _has_extended_attributes(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.streamstate", b"1")
    except OSError:
        return False
    return True


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS  # noqa: TID251 - a real process
    while time.monotonic() < until and process.poll() is None:  # noqa: TID251
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
            return
        except OSError:
            time.sleep(0.05)  # noqa: TID251
        finally:
            connection.close()
    raise RuntimeError(f"versitygw does not answer (status {process.poll()}): {log.read_text()[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
