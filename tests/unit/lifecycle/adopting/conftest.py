"""A query that is not ours, and a home that adopts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.adopting import AdoptingStage


@pytest.fixture
def adopting(tmp_path: Path) -> AdoptingStage:
    """Batches 0 to 3 are committed; nothing runs."""
    return AdoptingStage(tmp_path)
