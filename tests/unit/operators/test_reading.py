"""The operators that read state."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_streamstate.operators.snapshot import ExportStateOperator, VerifySnapshotOperator
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.scripted_reader import VARIABLE
from support.snapshots import SNAPSHOT, STREAM, Shelf


def deep(**given: object) -> VerifySnapshotOperator:
    return VerifySnapshotOperator(task_id="t", stream_id=STREAM, snapshot_id=SNAPSHOT, deep=True, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_driver_that_gives_no_answer_is_worth_another_try(
    named: NamedHome, shelf: Shelf, context: MakeContext, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It proves nothing about the snapshot; a reading has an end, and nothing of it is left. (Law 6)"""
    monkeypatch.setenv(VARIABLE, how)
    with pytest.raises(AirflowException) as caught:
        deep(deadline_seconds="5" if how == "hangs" else "60").execute(context())
    assert not isinstance(caught.value, AirflowFailException)
    assert shelf.control.scratch_ids() == []


def test_a_task_that_is_ended_leaves_its_reading(
    named: NamedHome, shelf: Shelf, context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next word of it, and what it made is removed."""
    monkeypatch.setenv(VARIABLE, "hangs")
    operator, told = deep(deadline_seconds=60), []

    def tell(line: str) -> None:
        told.append(line)
        if "hangs" in line:
            operator.on_kill()
        VerifySnapshotOperator.tell(operator, line)

    operator.__dict__["tell"] = tell
    with pytest.raises(AirflowException, match="the task was ended"):
        operator.execute(context())
    assert shelf.control.scratch_ids() == []


def test_what_the_driver_is_given_may_come_from_parameters() -> None:
    """Rendered as text or not."""
    operator = ExportStateOperator(
        task_id="t", stream_id=STREAM, out="/out", conf='{"spark.x": 1}', packages='["a:b:1"]', master="local[2]"
    )
    request = operator.reading()
    assert (request.conf, request.packages, request.master) == ({"spark.x": "1"}, ("a:b:1",), "local[2]")
    assert request.snapshot_id is None
