"""The real S3 server of the tests ends with its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.s3_server import ACCESS_KEY, REGION, SECRET_KEY
from support.versitygw import find_or_build, versitygw

pytestmark = pytest.mark.s3
DEADLINE_SECONDS = 40
TESTS = Path(__file__).resolve().parents[2]
KILLED = """
import sys
sys.path[:0] = sys.argv[1:]
from support.versitygw import find_or_build, versitygw
with versitygw(find_or_build(), "test-key", "test-secret", "us-east-1") as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def program() -> Path:
    found = find_or_build()
    if found is None:
        pytest.skip("there is no Go here to build versitygw")
    return found


def listens_on(url: str) -> list[int]:
    port = int(url.rpartition(":")[2])
    return [
        process.pid
        for process in psutil.process_iter()
        if process.name() == "versitygw" and f"127.0.0.1:{port}" in process.cmdline()
    ]


def test_a_test_that_fails_leaves_no_server(program: Path) -> None:
    """It is ended by its id, also after a failure."""
    seen = []

    def fail() -> None:
        with versitygw(program, ACCESS_KEY, SECRET_KEY, REGION) as url:
            seen.append(url)
            assert len(listens_on(url)) == 1
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    assert listens_on(seen[0]) == []


def test_a_run_that_is_killed_leaves_no_server(program: Path, tmp_path: Path) -> None:
    """The server dies with the run that started it."""
    argv = [sys.executable, "-c", KILLED, str(TESTS), str(TESTS.parent)]
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=place)
    try:
        assert run.stdout is not None
        url = run.stdout.readline().strip()
        [pid] = listens_on(url)
        server = psutil.Process(pid)
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.communicate(timeout=DEADLINE_SECONDS)
    server.wait(DEADLINE_SECONDS)
    assert listens_on(url) == []
