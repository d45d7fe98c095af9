"""``PinSnapshotOperator``."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.operators.snapshot import PinSnapshotOperator
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome

SNAPSHOT = "d-0001-stopped-000001"


def operator(**given: object) -> PinSnapshotOperator:
    return PinSnapshotOperator(task_id="pin", stream_id="flights", **{"snapshot_id": SNAPSHOT, **given})  # type: ignore[arg-type]


def test_a_snapshot_is_held_and_let_go_of(named: NamedHome, context: MakeContext) -> None:
    """Twice is once, either way; the field may be text."""
    named.stream().deploy().runs().stopped()
    retention = Retention(named.hook().home.control("flights"))
    for pinned, kept in ((True, [SNAPSHOT]), ("true", [SNAPSHOT]), ("False", []), (False, [])):
        result = operator(pinned=pinned).execute(context())
        assert result == {"stream_id": "flights", "snapshot_id": SNAPSHOT, "pinned": bool(kept)}
        assert list(retention.read().pins) == kept


def test_what_there_is_not_is_not_pinned(named: NamedHome, context: MakeContext) -> None:
    """For good: no retry makes it."""
    named.stream().deploy().runs()
    with pytest.raises(AirflowFailException, match="SnapshotNotFoundError"):
        operator().execute(context())
