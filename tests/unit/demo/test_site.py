"""What ``airflow-up`` leaves for other shells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demo import site


def test_a_shell_that_sources_the_file_reaches_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in a value; only its owner can read it."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    path = tmp_path / site.SHELL_FILE
    site._write_for_shells(path, {"STREAMSTATE_HOME": "s3://streams/home", "AWS_SECRET_ACCESS_KEY": "it's $HOME"})
    assert path.stat().st_mode & 0o777 == 0o600
    said = subprocess.run(
        ["/bin/sh", "-c", f'. {path}; echo "$STREAMSTATE_HOME|$AWS_SECRET_ACCESS_KEY|$SPARK_LOCAL_IP|$PATH"'],
        env={"PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert said.strip().split("|") == [
        "s3://streams/home",
        "it's $HOME",
        "127.0.0.1",
        f"{Path(sys.executable).parent}:/usr/bin:/bin",
    ]
