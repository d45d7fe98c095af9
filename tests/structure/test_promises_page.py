"""docs/explanation/other-systems.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "other-systems.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests|docs)/[\w/.-]+\.(?:py|md)(?:::\w+)?)`", PAGE)))


def test_the_page_names_some() -> None:
    """Else the one below holds nothing."""
    assert len(NAMED) > 30


@pytest.mark.parametrize("named", NAMED)
def test_what_is_named_is_there(named: str) -> None:
    """File and function, as they are called today."""
    path, _, function = named.partition("::")
    assert (ROOT / path).is_file()
    assert not function or f"def {function}(" in (ROOT / path).read_text()
