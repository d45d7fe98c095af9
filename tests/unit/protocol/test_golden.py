"""Messages as they were written by every release: today's code reads them (Law 7).

A file is added, never edited. ``<Kind>.json`` is a kind's first form; a field that comes later gets a new file
``<Kind>-2.json`` beside it. All of them are read; the newest of a kind is also written byte for byte.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_streamstate.protocol.codec import from_bytes, to_bytes
from support.examples import EXAMPLES
from support.messages import KINDS

FOLDER = Path(__file__).parents[2] / "golden" / "v1"


def number_of(path: Path) -> int:
    return int(path.stem.partition("-")[2] or 1)


FILES = sorted(FOLDER.iterdir(), key=lambda path: (path.stem.partition("-")[0], number_of(path)))
NEWEST = {path.stem.partition("-")[0]: path for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_golden_file_is_read_today(path: Path) -> None:
    """Whatever a release has written, this one understands (Law 7)."""
    cls = KINDS[path.stem.partition("-")[0]]
    assert type(from_bytes(path.read_bytes(), key=path.name, expected=cls)) is cls


@pytest.mark.parametrize("kind", sorted(NEWEST))
def test_the_newest_golden_file_is_written_today(kind: str) -> None:
    """Byte for byte: a change of the wire format is seen here first, and gets a new file."""
    body = NEWEST[kind].read_bytes()
    assert to_bytes(from_bytes(body, key=kind, expected=KINDS[kind])) == body


def test_every_kind_has_a_golden_file() -> None:
    """A kind that is registered and not recorded could change unseen."""
    assert set(NEWEST) == set(KINDS)
    assert [path.name for path in FILES if not re.fullmatch(r"[A-Za-z]+(-[2-9]|-[1-9][0-9]+)?\.json", path.name)] == []


def test_every_kind_has_an_example() -> None:
    """The examples that other tests use cover every kind."""
    assert sorted(type(value).kind for value in EXAMPLES) == sorted(KINDS)
