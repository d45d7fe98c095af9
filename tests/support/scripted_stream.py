"""Deployments written by hand, as controllers and agents would have recorded them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, OLDEST_PROTOCOL, parse_time, to_json
from airflow_streamstate.protocol.commands import Command, DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import (
    Accepted,
    Claimed,
    Drained,
    DrainFailed,
    Draining,
    Event,
    Failed,
    Finished,
    QueryStarted,
    Rejected,
    SnapshotReady,
    Started,
    Stopped,
)
from airflow_streamstate.protocol.ids import SnapshotKind, deployment_id_for, launch_key_for, snapshot_id_for
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import Heartbeat, QueryBeat, QueryPosition
from airflow_streamstate.protocol.records import Claim, DeploymentSpec, StartPlan, StreamRegister
from airflow_streamstate.protocol.terms.version import Artifact, Version
from airflow_streamstate.snapshot.checksums import content_digest
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import S3Options, StoreOptions
from support.scripted_driver import END_OFFSET, STREAM_STATE_ROWS, WATERMARK_TEXT

BEAT_SECONDS = 10.0
QUERY = "delays"
QUERY_ID = "859f4a6f-435c-47ba-9a05-e59c7df04d99"


class ScriptedStream:
    """One stream of a home.

    Args:
        clock: for the times of what is written.
    """

    def __init__(
        self, home: Store, checkpoints_uri: str, stream_id: str = "flights", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.control = StreamControl(home, stream_id, clock)
        self.checkpoints_uri = checkpoints_uri
        self.clock = clock

    def deploy(self, created_at: datetime | None = None, mirrors: tuple[str, ...] = ()) -> ScriptedAttempt:
        """A new deployment, current at once, with its first attempt."""
        token = self.spec_alone(created_at, mirrors)
        return self._move(deployment_id_for(token), token, 1)

    def spec_alone(self, created_at: datetime | None = None, mirrors: tuple[str, ...] = ()) -> int:
        """A deployment that its deploy has recorded, and nothing more of it; gives its fencing token."""
        HomePresence(self.control.home, self.clock).begin("test")
        stored = self.control.register()
        token = len(self.control.deployment_ids()) + 1
        deployment_id = deployment_id_for(token)
        self.control.create_spec(
            DeploymentSpec(
                stream_id=self.control.stream_id,
                deployment_id=deployment_id,
                fencing_token=token,
                version=Version(
                    application=Artifact("job.py", hashlib.sha256(b"").hexdigest()),
                    master="local[2]",
                    mirrors=mirrors,
                ),
                start=StartPlan("fresh", predecessor_id=None if stored is None else stored.value.deployment_id),
                checkpoints_uri=self.checkpoints_uri,
                request_id=f"r-{token}",
                requested_by="test",
                reason="",
                created_at=created_at or self.clock.now(),
            )
        )
        return token

    def resume(self) -> ScriptedAttempt:
        """The next attempt of the current deployment."""
        register = self.control.need_register().value
        return self._move(str(register.deployment_id), register.fencing_token, register.attempt + 1)

    def _move(self, deployment_id: str, token: int, attempt: int) -> ScriptedAttempt:
        register = StreamRegister(
            stream_id=self.control.stream_id,
            fencing_token=token,
            deployment_id=deployment_id,
            attempt=attempt,
            attempt_mode="run",
            intent=None,
            write_id=self.clock.new_uuid(),
            updated_at=self.clock.now(),
            updated_by="test",
        )
        stored = self.control.register()
        if stored is None:
            self.control.create_register(register)
        else:
            self.control.update_register(lambda _: register, by=register.updated_by)
        return ScriptedAttempt(self.control, deployment_id, attempt, self.clock)


class ScriptedAttempt:
    """One attempt, and everything that it can report."""

    def __init__(self, control: StreamControl, deployment_id: str, attempt: int, clock: Clock, pid: int = 4711) -> None:
        self.control = control
        self.deployment_id = deployment_id
        self.attempt = attempt
        self.clock = clock
        self.pid = pid
        self.batch_id: int | None = None
        self._beaten_at_seconds = clock.monotonic_seconds()

    @classmethod
    def of_driver(cls, config: Mapping[str, Any], pid: int) -> ScriptedAttempt:
        """The attempt that a launched driver is."""
        options = StoreOptions(S3Options(region=config.get("s3_region"), endpoint_url=config.get("s3_endpoint_url")))
        control = StreamControl(open_store(config["home_uri"], options=options), config["stream_id"], SYSTEM_CLOCK)
        return cls(control, config["deployment_id"], int(config["attempt"]), SYSTEM_CLOCK, pid)

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.control.stream_id

    # what it reports

    def say(self, kind: type[Event], **fields: object) -> int:
        """Write an event; gives its number."""
        event = kind(
            stream_id=self.stream_id,
            deployment_id=self.deployment_id,
            attempt=self.attempt,
            at=self.clock.now(),
            write_id=self.clock.new_uuid(),
            **fields,  # type: ignore[arg-type]
        )
        return self.control.journal(self.deployment_id).append(event)

    def claim(self, launch_key: str = "") -> ScriptedAttempt:
        """It is this attempt."""
        self.control.create_claim(
            Claim(
                stream_id=self.stream_id,
                deployment_id=self.deployment_id,
                attempt=self.attempt,
                launch_key=launch_key or launch_key_for(self.deployment_id, self.attempt),
                host="scripted",
                pid=self.pid,
                oldest_protocol=OLDEST_PROTOCOL,
                newest_protocol=NEWEST_PROTOCOL,
                agent_version="0.1.0",
                write_id=self.clock.new_uuid(),
                claimed_at=self.clock.now(),
            )
        )
        beat = self.control.heartbeat(self.deployment_id)
        earlier = {} if beat is None else {"earlier_attempt": beat.attempt, "earlier_beat_at": beat.at}
        self.say(Claimed, host="scripted", pid=self.pid, fencing_token=1, **earlier)
        return self

    def started(self, trigger: str = "default", *, restores: bool = False) -> ScriptedAttempt:
        """Session and query are there; with ``restores`` it reports from which batch of the snapshot it continues."""
        self.say(Started, spark_version="4.2.0", application_id="local-1")
        self._write_metadata()
        begun = self.began_from() if restores else -1
        how, batch_id = ("fresh", None) if begun < 0 else ("restored", begun)
        self.say(
            QueryStarted, query_name=QUERY, query_id=QUERY_ID, query_run_id=QUERY_ID, how=how, batch_id=batch_id,
            planned_batch_id=None, repairs=(), sink="file:parquet", trigger=trigger, output_mode="append",
        )  # fmt: skip
        self.beat()
        return self

    def _write_metadata(self) -> None:
        # As Spark does before ``start()`` comes back.
        if not self.checkpoint.exists():
            self.checkpoint.store.put(self.checkpoint.metadata_key, json.dumps({"id": QUERY_ID}).encode())
            for batch_id in range(max(self.began_from() - 1, 0), self.began_from() + 1):  # restored
                self._write_batch(batch_id)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of its one query."""
        store = open_store(self.control.spec(self.deployment_id).checkpoints_uri)
        return Checkpoint(store, layout.checkpoint_folder(self.stream_id, self.deployment_id, QUERY))

    def _write_batch(self, batch_id: int) -> None:
        metadata = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
        store = self.checkpoint.store
        store.put(self.checkpoint.offset_key(batch_id), f"v1\n{metadata}\n{END_OFFSET}".encode())
        store.put(self.checkpoint.commit_key(batch_id), b'v1\n{"nextBatchWatermarkMs":0}')

    def plans(self, batch_id: int) -> ScriptedAttempt:
        """A batch is planned in its checkpoint, and never committed."""
        metadata = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
        body = f'v1\n{metadata}\n{{"logOffset":{batch_id}}}'.encode()
        self.checkpoint.store.put(self.checkpoint.offset_key(batch_id), body)
        return self

    def proves(self, batches: int) -> ScriptedAttempt:
        """It commits this many batches past those that it started from, in its checkpoint too."""
        for batch_id in range(self.began_from() + 1, self.began_from() + 1 + batches):
            self._write_batch(batch_id)
            self.commits(batch_id)
        return self

    def runs(self) -> ScriptedAttempt:
        """It is claimed, started and has committed a batch."""
        self.claim().started().commits(0)
        return self

    def commits(self, batch_id: int) -> ScriptedAttempt:
        """A batch is committed."""
        self.batch_id = batch_id
        self.beat()
        return self

    def began_from(self) -> int:
        """The last batch of the snapshot that its deployment started from; -1 without one."""
        snapshot_id = self.control.spec(self.deployment_id).start.snapshot_id
        if snapshot_id is None:
            return -1
        batch_id = self.control.need_manifest(snapshot_id).queries[QUERY].position.batch_id
        return -1 if batch_id is None else batch_id

    def beat(self, at: datetime | None = None, **said: Any) -> None:
        """A sign of life; ``said``: more of the query's."""
        moment = at or self.clock.now()
        query = QueryBeat(self.batch_id, None if self.batch_id is None else moment, is_active=True, **said)
        self.control.put_heartbeat(Heartbeat(self.stream_id, self.deployment_id, self.attempt, moment, {QUERY: query}))

    def lives_on(self) -> None:
        """Its last sign of life again, of now, every BEAT_SECONDS: without one for a minute it counts as silent."""
        now = self.clock.monotonic_seconds()
        if now - self._beaten_at_seconds < BEAT_SECONDS:
            return
        self._beaten_at_seconds = now
        last = self.control.heartbeat(self.deployment_id)
        if last is not None and last.attempt == self.attempt:
            self.control.put_heartbeat(replace(last, at=self.clock.now()))

    def accepted(self, command: Command, number: int = 1) -> None:
        """It obeys a command."""
        self.say(Accepted, command_id=command.command_id, command_number=number, command=to_json(command))

    def snapshot(self, kind: SnapshotKind, number: int | None = None) -> str:
        """A complete snapshot without files."""
        snapshot_id = snapshot_id_for(self.deployment_id, kind, self.attempt if number is None else number)
        query = QuerySnapshot(QUERY_ID, self.position(), (), drained=kind == "drained")
        if self.control.manifest(snapshot_id) is None:
            self.control.create_manifest(
                SnapshotManifest(
                    snapshot_id, kind, self.stream_id, self.deployment_id, self.attempt, 1, self.clock.now(), "agent",
                    {QUERY: query}, self.clock.new_uuid(), content_digest({QUERY: query}),
                )
            )  # fmt: skip
        return snapshot_id

    def position(self, rows: int = 0) -> QueryPosition:
        """The position of the query."""
        return QueryPosition(
            self.batch_id, (END_OFFSET,), watermark_at=parse_time(WATERMARK_TEXT), state_rows_left=rows
        )

    def drained(self, command_id: str = "", number: int = 0) -> str:
        """The last event after a drain; gives the snapshot."""
        snapshot_id = self.snapshot("drained")
        self.say(
            Drained, command_id=command_id, command_number=number, snapshot_id=snapshot_id,
            queries={QUERY: self.position()},
        )  # fmt: skip
        return snapshot_id

    def stopped(self, command_id: str = "", number: int = 0) -> str:
        """The last event after a stop; gives the snapshot."""
        snapshot_id = self.snapshot("stopped")
        self.say(
            Stopped, snapshot_id=snapshot_id, queries={QUERY: self.position(STREAM_STATE_ROWS)},
            command_id=command_id, command_number=number,
        )  # fmt: skip
        return snapshot_id

    def finished(self) -> str:
        """The script came to its end; gives the snapshot."""
        snapshot_id = self.snapshot("stopped")
        self.say(Finished, snapshot_id=snapshot_id, queries={QUERY: self.position(STREAM_STATE_ROWS)})
        return snapshot_id

    def failed(self, error: str) -> None:
        """The script failed."""
        self.say(Failed, error=error, traceback=f"Traceback (most recent call last):\n{error}")

    # what a scripted driver does

    def is_only_to_drain(self) -> bool:
        """Whether it was launched for the flush alone."""
        return self.control.need_register().value.attempt_mode == "drain"

    def is_replaced(self) -> bool:
        """Whether another deployment or attempt is current."""
        register = self.control.need_register().value
        return (register.deployment_id, register.attempt) != (self.deployment_id, self.attempt)

    def obey(self, words: str) -> bool:
        """Obey the commands that are there; whether one of them ended it."""
        journal = self.control.journal(self.deployment_id)
        is_over = False
        for slot in journal.commands():
            if slot.command is None or slot.number is None:
                continue
            if is_over:
                break
            is_over = self._obey(slot.command, slot.number, slot.key, words)
            journal.delete_command(slot)
        return is_over

    def _obey(self, command: Command, number: int, key: str, words: str) -> bool:
        if isinstance(command, DrainNotification) and "cannot-drain" in words:
            self.say(Rejected, command_id=command.command_id, command_number=number, key=key, reason="a memory sink")
            return False
        self.accepted(command, number)
        if isinstance(command, SnapshotRequest):
            self.say(
                SnapshotReady, snapshot_id=self.snapshot("live", number), snapshot_kind="live",
                queries={QUERY: self.position()}, command_id=command.command_id, command_number=number,
                request_id=command.request_id,
            )  # fmt: skip
            return False
        if isinstance(command, StopRequest):
            self.stopped(command.command_id, number)
            return True
        if "drain-fails" in words:
            self.say(
                DrainFailed, command_id=command.command_id, command_number=number, query_name=QUERY,
                error="disk full", withdrawn=True,
            )  # fmt: skip
            self.stopped()
            return True
        self.say(
            Draining, command_id=command.command_id, snapshot_id=self.snapshot("pre-drain"), flush_batch_ids={QUERY: 1}
        )
        self.drained(command.command_id, number)
        return True


def drain_notification(
    stream: ScriptedStream, deployment_id: str, **changes: Any
) -> tuple[DrainNotification, int, str]:
    """A notification that is there; with its number and key."""
    now = stream.clock.now()
    command = DrainNotification(
        command_id=stream.clock.new_uuid(),
        stream_id=stream.control.stream_id,
        deployment_id=deployment_id,
        requested_at=now,
        deadline_at=now + timedelta(minutes=5),
        requested_by="test",
        reason="",
        rehearse=False,
    )
    command = replace(command, **changes)
    number, key = stream.control.journal(deployment_id).write_command(command, NEWEST_PROTOCOL)
    return command, number, key
