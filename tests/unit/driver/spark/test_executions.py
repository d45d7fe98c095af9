"""Whether the plan of a batch ran, by Spark's record of executions; the real one is asked in ``tests/spark``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("pyspark")

from airflow_streamstate.driver.spark.spark_query import LOOKED_AT, plans_that_ran

RUN_ID = "5f0e4b7a-9d3a-1c2d-3e4f-5a6b0b8e3c52"


@dataclass
class _Execution:
    number: int
    batch_id: int
    counters: int
    run_id: str = RUN_ID
    root: int | None = None
    has_ended: bool = True

    def description(self) -> str:
        return f"rows\nid = 1\nrunId = {self.run_id}\nbatch = {self.batch_id}"

    def executionId(self) -> int:
        return self.number

    def rootExecutionId(self) -> int:
        return self.number if self.root is None else self.root

    def completionTime(self) -> _Execution:
        return self

    def isDefined(self) -> bool:
        return self.has_ended


class _Sized(list[Any]):
    def size(self) -> int:
        return len(self)

    def apply(self, index: int) -> Any:
        return self[index]


class _Spark:
    """A query, its session and what that remembers."""

    def __init__(self, *executions: _Execution) -> None:
        self._executions = executions
        self.waited = 0

    def sparkSession(self) -> _Spark:
        return self

    def sharedState(self) -> _Spark:
        return self

    def statusStore(self) -> _Spark:
        return self

    def sparkContext(self) -> _Spark:
        return self

    def listenerBus(self) -> _Spark:
        return self

    def waitUntilEmpty(self, _milliseconds: int) -> None:
        self.waited += 1

    def runId(self) -> _Spark:
        return self

    def toString(self) -> str:
        return RUN_ID

    def executionsCount(self) -> int:
        return len(self._executions)

    def executionsList(self, first: int, count: int) -> _Sized:
        return _Sized(self._executions[first : first + count])

    def executionMetrics(self, number: int) -> _Sized:
        return _Sized([0] * next(one.counters for one in self._executions if one.number == number))


def test_a_plan_whose_counters_moved_ran() -> None:
    """Of this run alone, and of what was asked for."""
    spark = _Spark(_Execution(0, 3, 9), _Execution(1, 4, 0), _Execution(2, 5, 9, "another run"), _Execution(3, 6, 2))
    assert plans_that_ran(spark, {3, 4, 5}) == {3: True, 4: False}
    assert spark.waited == 0
    assert plans_that_ran(spark, {3, 4, 5}, is_last=True) == {3: True, 4: False}
    assert spark.waited == 1


def test_what_is_not_over_or_hangs_below_says_nothing() -> None:
    """A sink reads its own log in executions of its own; a counter may move until the end."""
    spark = _Spark(_Execution(0, 3, 0), _Execution(1, 3, 7, root=0), _Execution(2, 4, 0, has_ended=False))
    assert plans_that_ran(spark, {3, 4}) == {3: False}


def test_what_spark_remembers_no_more_is_unknown() -> None:
    """Nor is all of it looked through."""
    assert (
        plans_that_ran(_Spark(_Execution(0, 3, 9), *(_Execution(n, n + 9, 1) for n in range(1, LOOKED_AT + 1))), {3})
        == {}
    )
    assert plans_that_ran(object(), {3}) == {}
