"""An attempt under the keys of a rehearsal, by which a rehearsal uses the same code as a real start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar, cast

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.reporting import Reporter
from airflow_streamstate.driver.attempt.start_snapshot import StartSnapshot
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import Noted
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest

AnyEvent = TypeVar("AnyEvent", bound=Event)
SEEDS_FOLDER = "seeds"
"""Below the rehearsal, beside ``checkpoints``."""


class NotingReporter(Reporter):
    """Writes no event; keeps the texts of ``Noted``, each once, in ``notes``."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.notes: list[str] = []

    def write(self, kind: type[AnyEvent], **fields: object) -> AnyEvent:
        return self._event(kind, fields)

    def try_write(self, kind: type[Event], **fields: object) -> bool:  # noqa: ARG002 - as the reporter's
        return False

    def write_soon(self, kind: type[Event], **fields: object) -> None:
        event = self._event(kind, fields)
        if isinstance(event, Noted) and event.text not in self.notes:
            self.notes.append(event.text)


class RehearsedAttempt(Attempt):
    """Arguments as ``Attempt``; the deployment of its spec is the rehearsal."""

    ends_loops = True  # its queries are over at once, and a loop around them must end before the next pass
    _reporter_class = NotingReporter

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._made_of = arguments, named

    @property
    def notes(self) -> list[str]:
        """Notes for people."""
        return cast("NotingReporter", self.reporter).notes

    def after_a_drain(self) -> AttemptAfterDrain:
        """The same attempt, as if its start snapshot had been drained."""
        arguments, named = self._made_of
        attempt = AttemptAfterDrain(*arguments, **named)
        attempt.note_spark(self.spark_version)
        return attempt


class _DrainedStart(StartSnapshot):
    """The start snapshot as a drain would have left it."""

    def manifest(self) -> SnapshotManifest | None:
        manifest = super().manifest()
        if manifest is None:
            return None
        queries = {name: _drained(query) for name, query in manifest.queries.items()}
        return replace(manifest, snapshot_kind="drained", queries=queries)


class AttemptAfterDrain(RehearsedAttempt):
    """As if each query of the snapshot had been flushed, with no state left; it has checkpoints of its own."""

    least_seed_batch_id = 1

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.spec = replace(self.spec, start=replace(self.spec.start, mode="seed"))
        self.start = _DrainedStart(self.control, self.spec.start.snapshot_id, self.reporter)

    def checkpoint_of(self, query_name: str) -> Checkpoint:
        usual = super().checkpoint_of(query_name)
        folder = layout.deployment_folder(self.stream_id, self.deployment_id)
        return Checkpoint(usual.store, f"{folder}/{SEEDS_FOLDER}/{usual.prefix.rstrip('/').rpartition('/')[2]}")


def _drained(query: QuerySnapshot) -> QuerySnapshot:
    """The query after a drain: its planned batch is committed, its state is flushed."""
    if query.position.batch_id is None:
        return query
    position = replace(query.position, planned_batch_id=None, state_rows_left=0, state_left=())
    return replace(query, drained=True, position=position)
