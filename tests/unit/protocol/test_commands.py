"""Orders to a deployment."""

from __future__ import annotations

from dataclasses import fields

from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import (
    ALL_COMMANDS,
    CancelRequest,
    Command,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from support.examples import DRAIN
from support.messages import KINDS


def test_the_notification_on_the_wire() -> None:
    """The drain notification has exactly these fields there."""
    assert set(to_json(DRAIN)) == {
        "kind", "protocol", "command_id", "stream_id", "deployment_id", "mode", "requested_at", "deadline_at",
        "requested_by", "reason", "rehearse", "allow_state_loss", "batches_by_at", "on_deadline",
        "flush_within_seconds", "on_flush_deadline", "leave_queries",
    }  # fmt: skip


def test_all_commands_are_listed() -> None:
    """What is registered as a command is in ALL_COMMANDS, which the agent knows."""
    registered = {cls for cls in KINDS.values() if issubclass(cls, Command)}
    expected = {DrainNotification, CancelRequest, StopRequest, SnapshotRequest, SkipRequest}
    assert set(ALL_COMMANDS) == registered == expected


def test_a_drain_is_for_the_deployment_and_the_others_for_one_attempt() -> None:
    """A later resume is the newer order against a stop; a drain holds for whichever attempt reads it."""
    assert "attempt" not in {field.name for field in fields(DrainNotification)}
    for cls in (StopRequest, SnapshotRequest):
        assert "attempt" in {field.name for field in fields(cls)}
