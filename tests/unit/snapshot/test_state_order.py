from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.snapshot.state_tables import StateExport, StateOrder, StatePlace, parse_exactly

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


def test_numbers_are_parsed_as_they_stand_there() -> None:
    """A decimal that no float is exactly stays a text, so that what is shown finds its row again."""
    text = "[1, 1.5, 1e3, 0.1, 9007199254740993, 1.123456789012345678, 12345678901234567890.5, NaN]"
    exact = [1, 1.5, 1000.0, 0.1, 9007199254740993, "1.123456789012345678", "12345678901234567890.5", "NaN"]
    assert parse_exactly(text) == exact
