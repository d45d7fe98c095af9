"""Scripted drivers whose batches run with a watermark, the deployments that continue from them, and asset events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

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


class Asked:
    """What a task asks Airflow to record when it succeeds, as ``outlet_events`` of Airflow 3.3."""

    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}
        self.keys: list[str] = []

    def add_partitions(self, keys: list[str]) -> None:
        """Each in a separate event."""
        self.keys += keys


@dataclass(frozen=True)
class AssetEvent:
    """An event of an asset, of which only this is read."""

    extra: dict[str, Any] | None


class ByAsset:
    """Accessors by their asset, which Airflow 3.1 cannot hash."""

    def __init__(self, **accessors: Any) -> None:
        self._accessors = accessors

    def __getitem__(self, asset: Any) -> Any:
        return self._accessors[asset.uri]


class Recorded(list[AssetEvent]):
    """The recorded events of an asset, as ``inlet_events`` gives them."""

    def add(self, extra: dict[str, Any] | None) -> None:
        """A task has succeeded that asked for this one."""
        self.append(AssetEvent(extra))

    def ascending(self, ascending: bool) -> Recorded:
        """The order of what ``limit`` gives."""
        return Recorded(self if ascending else reversed(self))

    def limit(self, count: int | None) -> Recorded:
        """The first ones of that order."""
        return Recorded(self[:count])
