"""The launcher on the YARN cluster of this worker, and no application left afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.yarn_cluster import YarnCluster
from support.yarn_stage import YarnStage


@pytest.fixture
def stage(tmp_path: Path, yarn: YarnCluster) -> Iterator[YarnStage]:
    """The launcher on it; no application is left afterwards."""
    made = YarnStage(tmp_path, yarn)
    yield made
    made.end()
