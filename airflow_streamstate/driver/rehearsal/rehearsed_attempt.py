"""The attempt that never is: everything that building and reading take of an attempt, under the keys of a rehearsal.

So a rehearsal builds a query's checkpoint by the very code that a start of the new version goes through, refusals and
all; and what it builds is its own, and removed with it.
"""

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
    """Says what there is to say, keeps the notes, and writes no event anywhere.

    Attributes:
        notes: what was noted, each once.
    """

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

    ends_loops = True  # its queries are over at once: only so a second pass can wait behind such a loop
    _reporter_class = NotingReporter

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._made_of = arguments, named

    @property
    def notes(self) -> list[str]:
        """What a person should know."""
        return cast("NotingReporter", self.reporter).notes

    def after_a_drain(self) -> AttemptAfterDrain:
        """The same, as if what it starts from had been drained."""
        arguments, named = self._made_of
        attempt = AttemptAfterDrain(*arguments, **named)
        attempt.note_spark(self.spark_version)
        return attempt


class _DrainedStart(StartSnapshot):
    """The snapshot as a drain would have left it."""

    def manifest(self) -> SnapshotManifest | None:
        manifest = super().manifest()
        if manifest is None:
            return None
        queries = {name: _drained(query) for name, query in manifest.queries.items()}
        return replace(manifest, snapshot_kind="drained", queries=queries)


class AttemptAfterDrain(RehearsedAttempt):
    """As if each query of the snapshot had been flushed, with nothing left; its checkpoints lie beside the others."""

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
    """What a drain would leave of a query: it commits what is planned, and flushes all that it has."""
    if query.position.batch_id is None:
        return query
    position = replace(query.position, planned_batch_id=None, state_rows_left=0, state_left=())
    return replace(query, drained=True, position=position)
