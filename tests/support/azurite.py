"""A server of Azure Blob Storage on loopback: Azurite, Microsoft's own, installed once by npm at a pinned version."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from airflow_streamstate.store.options import AzureOptions
from support.go_program import cache_folder
from support.versitygw import die_with_the_test

VERSION = "3.33.0"
INSTALL_SECONDS = 540
START_SECONDS = 60
CONTAINER = "streams"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Both are the emulator's own, known to everybody."""


def options_for(endpoint_url: str) -> AzureOptions:
    """Options that reach the server there and nothing else."""
    return AzureOptions(account_name=ACCOUNT, account_key=ACCOUNT_KEY, endpoint_url=f"{endpoint_url}/{ACCOUNT}")


@contextmanager
def azurite_server() -> Iterator[str | None]:
    """A running server with CONTAINER in it; gives its address, or None on a machine without npm."""
    program = _find_or_install()
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="azurite-") as place:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        with (Path(place) / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    *(str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
                    *("--inMemoryPersistence", "--skipApiVersionCheck", "--silent"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=place,
                start_new_session=True,
                preexec_fn=die_with_the_test,
            )
        try:
            _wait_until_it_answers(process, port, Path(place) / "log")
            make_container(f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def make_container(endpoint_url: str, name: str = CONTAINER) -> None:
    """Make a container there, signed as the account's owner: obstore makes none."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    told = "\n".join(f"{header}:{value}" for header, value in sorted(headers.items()))
    text = f"PUT\n\n\n\n\n\n\n\n\n\n\n\n{told}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection(urlsplit(endpoint_url).netloc, timeout=START_SECONDS)
    try:
        connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers={**headers, "Content-Length": "0"})
        status = connection.getresponse().status
    finally:
        connection.close()
    if status not in (201, 409):  # the second: it is there
        raise RuntimeError(f"Azurite made no container: status {status}")


def _find_or_install() -> Path | None:
    folder = cache_folder() / f"azurite-{VERSION}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once install once
        if not program.exists():
            done = subprocess.run(
                [
                    npm,
                    "install",
                    "--prefix",
                    str(folder),
                    "--no-audit",
                    "--no-fund",
                    "--ignore-scripts",
                    f"azurite@{VERSION}",
                ],
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                check=False,
                # npm trusts the authorities that the rest of the machine trusts, as pip and Go do.
                env={"NODE_EXTRA_CA_CERTS": os.environ.get("SSL_CERT_FILE", "")} | os.environ,
            )
            if done.returncode != 0:
                raise RuntimeError(f"Azurite could not be installed: {done.stderr[-2000:]}")
    return program


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS  # noqa: TID251 - a real process
    while time.monotonic() < until and process.poll() is None:  # noqa: TID251
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(0.1)  # noqa: TID251
    raise RuntimeError(f"Azurite does not answer (status {process.poll()}): {log.read_text()[-2000:]}")


def account_signature() -> str:
    """A shared access signature that permits everything with the blobs of the account, until long after the test."""
    words = {
        "sv": "2020-12-06",
        "ss": "b",
        "srt": "sco",
        "sp": "rwdlac",
        "se": "2099-01-01T00:00:00Z",
        "spr": "https,http",
    }
    lines = [ACCOUNT, words["sp"], words["ss"], words["srt"], "", words["se"], "", words["spr"], words["sv"], "", ""]
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    return urlencode({**words, "sig": base64.b64encode(digest).decode()})
