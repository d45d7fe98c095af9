"""A batch that was skipped by a driver that died before it wrote the event."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from airflow_streamstate.controller.observe.lineage import untold_skips
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.events import Accepted, Rejected
from support.checkpoints import commit_batch, memory_checkpoint, plan_batch, run_batches

AT = datetime(2026, 3, 1, 10, 0, tzinfo=timezone.utc)
REQUEST = SkipRequest(
    "c-1", "orders", "d-0001", AT, None, "ada", "a bad row", query_name="counts", batch_id=4, accepts_written=False
)
ACCEPTED = Accepted("orders", "d-0001", 2, AT, "w-1", command_id="c-1", command_number=1, command=to_json(REQUEST))
REJECTED = Rejected("orders", "d-0001", 3, AT, "w-2", command_id="c-1", command_number=1, key="", reason="a drain")


def test_what_was_committed_and_not_told_is_a_gap() -> None:
    """Not while the batch is planned, nor if its skip ended otherwise, nor of a different query. (Laws 1 and 14)"""
    checkpoint = run_batches(memory_checkpoint(), 3)
    plan_batch(checkpoint, 4)
    assert untold_skips([ACCEPTED], "counts", checkpoint) == []
    commit_batch(checkpoint, 4)
    (told,) = untold_skips([ACCEPTED], "counts", checkpoint)
    assert (told.batch_id, told.requested_by, told.reason, len(told.moves)) == (4, "ada", "a bad row", 1)
    assert told.moves[0].from_offset != told.moves[0].to_offset
    assert untold_skips([ACCEPTED, REJECTED], "counts", checkpoint) == []
    assert untold_skips([ACCEPTED], "other", checkpoint) == untold_skips([ACCEPTED], "counts", None) == []
    other = replace(ACCEPTED, command=to_json(replace(REQUEST, batch_id=5)))
    assert untold_skips([other], "counts", checkpoint) == []
