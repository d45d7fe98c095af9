"""A stage for every test of rehearsals and replays."""

from __future__ import annotations

import pytest

from support.rehearsal_stage import Stage


@pytest.fixture
def stage() -> Stage:
    """A stage before its first deployment."""
    return Stage()
