"""A home that a checkout before the first release wrote (commit 8ceb2cc1): a stream, deployed and stopped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EARLIER = Path(__file__).resolve().parents[1] / "golden" / "earlier_home"
STREAM_THERE = "orders"
WORDS = "this home was written by another version of airflow-streamstate"


def _bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def earlier_home(home: Path) -> Iterator[None]:
    """It is at this place, and within the block no byte of it changes."""
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(EARLIER, home)
    yield
    assert _bytes_of(home) == _bytes_of(EARLIER)
