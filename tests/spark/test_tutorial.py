"""The tutorial, as a reader types it: every command of docs/start/tutorial.md, in one shell, on real Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "start" / "tutorial.md").read_text(), re.DOTALL)
REFUSED = re.compile(r"^(.*?) +# exit status (\d+)$", re.MULTILINE)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a reader with an empty home folder; the driver that a failed run left is ended."""
    commands = Path(sys.executable).parent
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    yield environment
    kill = ["streamstate", "--home", str(tmp_path / "flights" / "home"), "kill", "flights"]
    subprocess.run(kill, env=environment, check=False, capture_output=True)


@pytest.mark.named
def test_the_tutorial_runs_as_it_stands(reader: dict[str, str], tmp_path: Path) -> None:
    """A reader who types each line gets to the end, with the window of his flight written by the drain."""
    script = "set -euo pipefail\n" + REFUSED.sub(r"\1 && false || [ $? = \2 ]", "".join(BLOCKS))
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=reader, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert '"value": {"count": 1, "sum": 12.0, "count_2": 1}' in done.stdout
    assert list((tmp_path / "flights" / "out").glob("*.parquet"))
    assert "stopped" in done.stdout
