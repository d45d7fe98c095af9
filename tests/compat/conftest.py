"""The lives of this tier, lived once for all its tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.spark_matrix import Life, Matrix, full, keep, quick

RESULTS = "STREAMSTATE_COMPAT_RESULTS"
PLAN: list[Life] = full() if os.environ.get("STREAMSTATE_COMPAT") == "full" else quick()


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Matrix:
    """Every life that this run's tests ask for, lived."""
    asked = {item.callspec.params.get("life") for item in request.session.items if hasattr(item, "callspec")}
    lives = [life for life in PLAN if life in asked]
    before = [Life(life.of, "live", life.cell) for life in lives if life.do == "take"]
    lived = Matrix(tmp_path_factory.mktemp("matrix"))
    lived.run([*before, *lives])
    if os.environ.get(RESULTS):
        keep(Path(os.environ[RESULTS]), lived.results)
    return lived
