"""What a user can set, on every surface, is as it was recorded: no name, default or help changes unseen.

``python tests/net/record.py`` records it again, where a change of it is meant.
"""

from __future__ import annotations

import difflib

import pytest

from support.net import SURFACES
from support.surfaces import surfaces_text

MOST_LINES = 60


def test_the_surfaces_are_as_recorded() -> None:
    """Options of the shell, parameters and templates of Airflow, fields of files: type, default, help."""
    before, now = SURFACES.read_text(encoding="utf-8"), surfaces_text()
    if before != now:
        lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=1))
        shown = "\n".join(line[:300] for line in lines[:MOST_LINES])
        pytest.fail(f"surfaces have changed; `python tests/net/record.py` records them:\n{shown}", pytrace=False)
