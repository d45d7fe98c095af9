"""Whole lives on every Spark, and streams that go from one to another: every row once, state and timers kept."""

from __future__ import annotations

import os

import pytest

from support.spark_matrix import Life, Matrix, expected, full, quick

pytestmark = [pytest.mark.compat, pytest.mark.timeout(7_200)]
PLAN = full() if os.environ.get("STREAMSTATE_COMPAT") == "full" else quick()


@pytest.mark.parametrize("life", PLAN, ids=lambda life: life.name)
def test_every_row_comes_out_once(matrix: Matrix, life: Life) -> None:
    """Stop, restore, drain, seed on this Spark, or with what another one left: exact; a rollback that loses something
    is refused at start() (Laws 5, 9, 10, 11, 14)."""
    result = matrix.results[life]
    assert result["outcome"] in expected(life), result.get("error")
