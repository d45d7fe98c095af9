"""``ExportStateOperator``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.controller.scratch.readings import Readings
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.operators.base import rendered_terms
from airflow_streamstate.operators.snapshot import ExportStateOperator
from airflow_streamstate.protocol.terms.order import ExportTerms
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.airflow_upgrades import Pushed
from support.snapshots import SNAPSHOT, STREAM, Shelf

LATER = "d-0001-stopped-000002"


def operator(**given: object) -> ExportStateOperator:
    return ExportStateOperator(task_id="export", stream_id=STREAM, deadline_seconds=60, **given)  # type: ignore[arg-type]


def test_it_returns_what_was_written_where(
    named: NamedHome, shelf: Shelf, context: MakeContext, tmp_path: Path
) -> None:
    """Of the newest snapshot with state, unless another one is named; small enough for an XCom."""
    result = operator(out=str(tmp_path / "out")).execute(context())
    assert set(result) == {
        "stream_id", "snapshot_id", "deployment_id", "kind", "taken_at", "since_snapshot_id", "export",
    }  # fmt: skip
    assert (result["snapshot_id"], result["export"]["complete"]) == (LATER, True)
    assert result["export"]["uri"] == str(tmp_path / "out")
    named_one = operator(out=str(tmp_path / "out"), snapshot_id=SNAPSHOT).execute(context())
    assert named_one["snapshot_id"] == SNAPSHOT


def test_changes_are_written_since_an_older_snapshot(
    named: NamedHome, shelf: Shelf, context: MakeContext, tmp_path: Path
) -> None:
    """Named by what an earlier run returned."""
    result = operator(out=str(tmp_path / "out"), changes_since=SNAPSHOT).execute(context())
    assert (result["since_snapshot_id"], result["export"]["tables"][0]["deletes"]) == (SNAPSHOT, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"out": "{base}/home/inside"}, "snapshots or copies of them are kept"),
        ({"out": "{base}/out", "snapshot_id": "d-0001-live-000009"}, "SnapshotNotFoundError"),
    ],
)
def test_what_cannot_be_fails_for_good(
    named: NamedHome, shelf: Shelf, context: MakeContext, tmp_path: Path, given: dict[str, str], words: str
) -> None:
    """One sentence each, and no retry."""
    with pytest.raises(AirflowFailException, match=words):
        operator(**{name: value.format(base=tmp_path) for name, value in given.items()}).execute(context())


def test_a_format_that_there_is_not_is_refused_when_the_dag_is_parsed() -> None:
    """With those that there are; a template is checked when it is rendered."""
    with pytest.raises(InvalidRequestError, match="Use one of: parquet, delta"):
        operator(out="/out", format="csv")
    assert operator(out="/out", format="{{ params.format }}").format == "{{ params.format }}"


def test_an_export_is_replaced_unless_a_field_says_otherwise() -> None:
    """A field that renders to nothing has the operator's default: a retry replaces what the try before wrote."""
    for given, overwrites in (("", True), ("None", True), ("false", False), (True, True)):
        task = operator(out="/out", overwrite=given)
        assert rendered_terms(ExportTerms, task, task.taken).overwrite is overwrites


def test_state_that_could_not_be_read_fails_the_task_and_is_told(
    shelf: Shelf, ours: Any, pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written stays, and the XCom reports what is left out."""
    look = Readings.look

    def with_a_hole(*given: Any) -> dict[str, Any]:
        found = look(*given)
        found["export"]["problems"] = [{"table": "counts/1", "reason": "it has no reader"}]
        return found

    monkeypatch.setattr(Readings, "look", with_a_hole)  # the driver's answer is foreign to the operator
    with pytest.raises(AirflowFailException, match="some of the state could not be read"):
        operator(out=str(tmp_path / "out")).execute(ours)
    assert pushed["return_value"]["export"]["problems"][0]["reason"] == "it has no reader"
