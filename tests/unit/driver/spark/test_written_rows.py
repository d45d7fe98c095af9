from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from airflow_streamstate.driver.spark.spark_query import rows_given_to_file_sink


class Java:
    """A JVM object of this class whose methods answer these values."""

    def __init__(self, class_name: str, **values: Any) -> None:
        self._class_name = class_name
        for name, value in values.items():
            setattr(self, name, lambda *_arguments, value=value: value)

    def getClass(self) -> Java:
        return Java("Class", getSimpleName=self._class_name)


class Metrics:
    """A Scala map of an operator's counters."""

    def __init__(self, rows: int | None) -> None:
        self._rows = rows

    def get(self, name: str) -> Java:
        if self._rows is None or name != "numOutputRows":
            return Java("None", isDefined=False)
        return Java("Some", isDefined=True, get=Java("SQLMetric", value=self._rows))


class Sequence:
    """A Scala sequence."""

    def __init__(self, *items: Any) -> None:
        self._items = items

    def size(self) -> int:
        return len(self._items)

    def apply(self, index: int) -> Any:
        return self._items[index]


def _operator(name: str, rows: int | None, *children: Java) -> Java:
    return Java(name, metrics=Metrics(rows), children=Sequence(*children))


def _execution(plan: Java, sink: str = "FileStreamSink", batch_id: int = 4) -> Java:
    last = Java("IncrementalExecution", currentBatchId=batch_id, executedPlan=plan)
    return Java("MicroBatchExecution", sink=Java(sink), lastExecution=last)


PLAN = _operator("WholeStageCodegenExec", None, _operator("ProjectExec", None, _operator("StateStoreSaveExec", 7)))


def test_the_first_counter_below_the_root_counts_what_was_written() -> None:
    """What gives on each row as it comes has no counter and needs none."""
    assert rows_given_to_file_sink(_execution(PLAN), 4) == 7


@pytest.mark.parametrize(
    "execution",
    [
        _execution(PLAN, sink="ForeachBatchSink"),
        _execution(PLAN, batch_id=5),
        _execution(_operator("BatchEvalPythonExec", None, _operator("StateStoreSaveExec", 7))),
        _execution(_operator("ProjectExec", None, _operator("FilterExec", 1), _operator("FilterExec", 2))),
        Java("MicroBatchExecution", sink=Java("FileStreamSink"), lastExecution=None),
    ],
)
def test_what_is_not_certain_is_not_told(execution: Java) -> None:
    """Another sink may run the plan twice, another batch may be the last, an operator may multiply rows."""
    assert rows_given_to_file_sink(execution, 4) is None
