"""Scripted drivers whose batches run with a watermark, and the deployments that go on from them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.records import StartPlan
from support.checkpoints import commit_batch, plan_batch
from support.scripted_stream import ScriptedAttempt, ScriptedStream

HOUR = timedelta(hours=1)


def commits_through(attempt: ScriptedAttempt, batch_id: int, watermark_at: datetime) -> None:
    """It commits a batch that ran with this watermark, and computed one that is a minute later."""
    milliseconds = int(watermark_at.timestamp() * 1000)
    plan_batch(attempt.checkpoint, batch_id, watermark_ms=milliseconds)
    commit_batch(attempt.checkpoint, batch_id, watermark_ms=milliseconds + 60_000)
    attempt.commits(batch_id)


def succeeds(
    stream: ScriptedStream, before: ScriptedAttempt, mode: Literal["restore", "seed"], snapshot_id: str
) -> ScriptedAttempt:
    """The next deployment is current, and starts from this snapshot; no driver of it has come to life."""
    attempt = stream.deploy()
    spec = stream.control.spec(attempt.deployment_id)
    spec = replace(spec, start=StartPlan(mode, snapshot_id, before.deployment_id))
    stream.control.cells.store.put(layout.spec_key(stream.control.stream_id, attempt.deployment_id), to_bytes(spec))
    return attempt
