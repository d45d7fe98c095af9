"""``VerifySnapshotOperator``."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.operators.snapshot import VerifySnapshotOperator
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.airflow_upgrades import Pushed
from support.scripted_reader import VARIABLE
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, flip_byte


def operator(**given: object) -> VerifySnapshotOperator:
    given = {"snapshot_id": SNAPSHOT, "deadline_seconds": 60, **given}
    return VerifySnapshotOperator(task_id="verify", stream_id=STREAM, **given)  # type: ignore[arg-type]


def test_a_whole_snapshot_verifies_and_may_be_loaded(named: NamedHome, shelf: Shelf, context: MakeContext) -> None:
    """By Spark, if that is asked for."""
    plain = {"stream_id": STREAM, "snapshot_id": SNAPSHOT, "ok": True, "problems": [], "loaded": None}
    assert operator().execute(context()) == plain
    loaded = operator(deep="true").execute(context())["loaded"]
    assert loaded[QUERY]["operators"][0]["rows"] == 3


def test_a_snapshot_that_is_not_whole_fails_the_task_for_good(
    shelf: Shelf, ours: Any, pushed: Pushed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named by its file, in the XCom as in the error; no driver is started over it."""
    monkeypatch.setenv(VARIABLE, "dies")
    flip_byte(shelf.checkpoints, shelf.data_key("offsets/3"), at=5)
    with pytest.raises(AirflowFailException, match="offsets/3"):
        operator(deep=True).execute(ours)
    assert [(one["kind"], one["path"]) for one in pushed["return_value"]["problems"]] == [("altered", "offsets/3")]


@pytest.mark.parametrize("snapshot_id", ["None", "", "d-0001-live-000009"])
def test_a_snapshot_that_nobody_named_or_knows_is_refused(
    named: NamedHome, shelf: Shelf, context: MakeContext, snapshot_id: str
) -> None:
    """A template that found nothing verifies nothing."""
    with pytest.raises(AirflowFailException):
        operator(snapshot_id=snapshot_id).execute(context())
