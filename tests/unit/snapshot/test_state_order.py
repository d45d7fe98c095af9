from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.snapshot.state_order import StateExport, StateOrder, StatePlace

ORDER = StateOrder(
    verb="state", places={"counts": StatePlace("file:/a", 4, 2, 3)}, folder="/launch", deadline_seconds=60.5, limit=3,
    before={"counts": StatePlace("file:/b", 2, feed_gap="none")}, key={"window": {"start": None}},
    export=StateExport("s3a://bucket/out", "delta", True, {"stream_id": "orders"}),
)  # fmt: skip


@pytest.mark.parametrize("order", [ORDER, replace(ORDER, before={}, key=None, export=None)])
def test_an_order_reaches_its_driver_word_for_word(order: StateOrder) -> None:
    """By ``driver.json``."""
    assert StateOrder.from_json(json.loads(json.dumps(order.to_json()))) == order


@pytest.mark.parametrize("name", ["places", "before", "export", "limit", "folder"])
def test_what_is_no_order_is_told(name: str) -> None:
    """Nothing is read by guessing."""
    raw = {key: value for key, value in ORDER.to_json().items() if key != name}
    with pytest.raises(MalformedMessageError):
        StateOrder.from_json(raw)
    with pytest.raises(MalformedMessageError):
        StateOrder.from_json({**ORDER.to_json(), "places": {"counts": {"nothing": 1}}})
