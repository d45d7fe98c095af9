"""Going back to an older snapshot: a query's sink is undone to its batch there, then its checkpoint is built.

What comes after would run other rows under batch ids that the sink holds (Law 14). Once a query has a checkpoint of
this deployment its sink is never undone again: what it holds behind the snapshot is then this deployment's own. A
driver that dies in between begins the undo again, which changes nothing where it was done (Law 2).
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.undoing import NOTHING_STAYS, FoundUndo, UndoOrder
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.snapshotting import checkpoint_names, need_current
from airflow_streamstate.errors import ConflictError, DeploymentNotFoundError, InvalidRequestError
from airflow_streamstate.plan.feeding import is_fed_by
from airflow_streamstate.plan.recorded import last_recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.data_events import Undoing, Undone, UndoneBy
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.records import StartPlan

COMMAND_SECONDS = 3_600.0
MAX_OUTPUT_CHARACTERS = 8_000
MAX_REMOVED = 100
VARIABLE = "STREAMSTATE_UNDO_"


def undo_sink(attempt: Attempt, name: str, startable: StartableQuery, known: QuerySnapshot) -> str:
    """Undo the sink of a query whose checkpoint is about to be built; does nothing where this start undoes nothing.

    Args:
        attempt: that is about to start the query.
        name: the query.
        startable: the script's writer.
        known: the query in the snapshot that the deployment starts from.

    Returns:
        The query id to go on under: the snapshot's, or another one where the sink remembers that one's batches.

    Raises:
        InvalidRequestError: the sink cannot be undone exactly, and what the user accepted by name does not help.
        ConflictError: the undo did not come to its end, or somebody else wrote to the sink meanwhile.
        FencedError: this attempt was replaced.
    """
    start = _start_that_undoes(attempt, name)
    if start is None:
        return known.query_id
    wish = _wish(attempt, name, known, start)
    _refuse_before_upstream(attempt, name, start)
    if wish.last_batch_id is not None and wish.last_batch_id <= wish.to_batch_id:
        return known.query_id  # nobody planned a batch behind the snapshot
    return _Undo(attempt, name, startable, known, start, wish).run()


def _refuse_before_upstream(attempt: Attempt, name: str, start: StartPlan) -> None:
    """See that this query does not read what is yet to be taken out of the sink of another one.

    Raises:
        ConflictError: what feeds it is not started yet.
    """
    if start.undoes is None:
        return
    # What was started there and refused has a checkpoint, and no plan: then the one before it counts.
    folders = checkpoint_names(attempt, start.undoes)
    built = [each for each in folders if _checkpoint(attempt, start.undoes, each).exists()]
    plans = last_recorded_plans(attempt.control, start.undoes, {name, *built})
    sources = plans[name].sources if name in plans else ()
    feeding = [
        other
        for other, plan in plans.items()
        if other not in (name, *attempt.queries.names()) and any(is_fed_by(source, plan.sink) for source in sources)
    ]
    if feeding:
        raise ConflictError(
            "this query reads what other queries have written, and that is taken back only when they start",
            query_name=name,
            fed_by=sorted(feeding),
            next_step="Have the script start those first, then go back again.",
        )


@dataclass(frozen=True)
class _Undo:
    """One query's."""

    attempt: Attempt
    name: str
    startable: StartableQuery
    known: QuerySnapshot
    start: StartPlan
    wish: UndoOrder

    def run(self) -> str:
        """As ``undo_sink``."""
        start, means = self.start, self.startable.undo_means()
        if means == "exact by undo":
            query_id = self._new_query_id() if self.startable.undo_needs_query_id() else self.known.query_id
            self._by_connector()
            return query_id
        if means == "only doubled":
            if not start.accepts_duplicates:
                raise self._refusal(
                    "the sink takes nothing back: what came after the snapshot would be there twice",
                    "Deploy with --accept-duplicates to go back all the same, or go on from the snapshot at the end of"
                    " the last deployment.",
                )
            self._told("doubled", FoundUndo(self._batches()), self._rows_again())
        elif start.undo_command:
            self._by_command(start.undo_command)
        else:
            raise self._refusal(
                "nobody but you can undo this sink, and what came after the snapshot may be skipped or doubled",
                "Deploy with --undo-command, a command that takes the batches behind the snapshot out of it, or go on"
                " from the snapshot at the end of the last deployment.",
            )
        return self.known.query_id

    def _by_connector(self) -> None:
        found = self.startable.find_undo(self.wish)
        if found.target:
            need_current(self.attempt)
            self._write(Undoing, "undo", found)
            self.startable.undo_batches(self.wish, found)
        self._told("undo", found)

    def _by_command(self, command: Sequence[str]) -> None:
        need_current(self.attempt)
        found = FoundUndo(self._batches(), target="what the command leaves")
        self._write(Undoing, "command", found)
        last = self.wish.last_batch_id
        values = {
            "STREAM_ID": self.attempt.stream_id,
            "QUERY_NAME": self.name,
            "TO_BATCH_ID": str(self.wish.to_batch_id),
            "LAST_BATCH_ID": "" if last is None else str(last),
        }
        self._run(command, {f"{VARIABLE}{key}": value for key, value in values.items()})
        self._told("command", found)

    def _run(self, command: Sequence[str], variables: dict[str, str]) -> None:
        status: object
        try:
            done = subprocess.run(
                list(command),
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_SECONDS,
                check=False,
            )
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            status, output = f"none after {COMMAND_SECONDS:.0f} s", error.stdout or b""
        except OSError as error:
            status, output = f"it could not be run ({type(error).__name__})", str(error).encode()
        text = self.attempt.reporter.shortened(output.decode(errors="replace"), MAX_OUTPUT_CHARACTERS, from_end=True)
        for line in text.splitlines():
            self.attempt.reporter.say(f"query {self.name}: undo command: {line}")
        if status != 0:
            raise ConflictError(
                "the command that undoes the sink did not succeed",
                query_name=self.name,
                command=command[0],
                exit_status=status,
                to_batch_id=self.wish.to_batch_id,
                next_step="What it said is in the driver's log; see to it, and resume the deployment: it runs again.",
            )

    def _batches(self) -> tuple[int, ...]:
        last = self.wish.last_batch_id
        return () if last is None else tuple(range(self.wish.to_batch_id + 1, last + 1))

    def _rows_again(self) -> int | None:
        """Rows of input behind the snapshot that were read before, at the most; None where the sources do not tell."""
        self.attempt.sources.look_up(self.name, self.startable)
        behind = self._rows_behind(self.known.position.end_offsets)
        undone = _undone_deployments(self.attempt, self.start)
        newest = next((each for each in undone if _has_run(self.attempt, each, self.name)), None)
        last = () if newest is None else self._last_lines(newest)
        left = self._rows_behind(last) if last else 0
        return None if behind is None or left is None else max(0, behind - left)

    def _rows_behind(self, offsets: Sequence[str]) -> int | None:
        lags = self.attempt.sources.lag(self.name, offsets)
        told = [lag.behind for lag in lags.values() if lag.unit == "rows"]
        return sum(told) if told and len(told) == len(offsets) else None

    def _last_lines(self, deployment_id: str) -> tuple[str, ...]:
        """The offsets of the last batch that a deployment planned; () where its log is gone."""
        checkpoint = _checkpoint(self.attempt, deployment_id, self.name)
        last = checkpoint.position().last_batch_id if checkpoint.exists() else None
        entry = None if last is None else checkpoint.read_offset(last)
        return () if entry is None else entry.source_lines

    def _told(self, means: UndoneBy, found: FoundUndo, rows_again: int | None = None) -> None:
        """Say what was undone, once, with what an earlier attempt took out before it died."""
        said = [event for event in self.attempt.reporter.events if self._is_of_this(event)]
        if not found.target and any(isinstance(event, Undone) for event in said):
            return
        for event in said:
            if isinstance(event, Undoing) and event.first_batch_id is not None and event.last_batch_id is not None:
                before = range(event.first_batch_id, event.last_batch_id + 1)
                found = replace(
                    found,
                    batch_ids=tuple(sorted({*found.batch_ids, *before})),
                    removed=tuple(dict.fromkeys((*event.removed, *found.removed))),
                    target=found.target or event.target,
                )
        self._write(Undone, means, found, rows_again)

    def _is_of_this(self, event: Event) -> bool:
        return isinstance(event, Undoing | Undone) and event.query_name == self.name

    def _write(
        self, kind: type[Undoing | Undone], means: UndoneBy, found: FoundUndo, rows_again: int | None = None
    ) -> None:
        place, first = self.startable.sink_place(), found.batch_ids[0] if found.batch_ids else None
        last = found.batch_ids[-1] if found.batch_ids else None
        which = "nothing that is known of" if first is None else f"batches {first} to {last}"
        verb = {"doubled": "leaves as it was accepted"}.get(means, "undoes" if kind is Undoing else "has undone")
        self.attempt.reporter.say(
            f"query {self.name}: going back to batch {self.wish.to_batch_id} {verb} {which} in {place}"
            + ("" if rows_again is None else f"; at the most {rows_again:,} rows of input come again")
        )
        self.attempt.reporter.write(
            kind,
            query_name=self.name,
            sink=place,
            means=means,
            to_batch_id=self.wish.to_batch_id,
            first_batch_id=first,
            last_batch_id=last,
            target=found.target,
            removed=found.removed[:MAX_REMOVED],
            removed_count=len(found.removed),
            rows_again=rows_again,
        )

    def _new_query_id(self) -> str:
        """The same at every try, and another one for every deployment (Law 2)."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.known.query_id}/{self.name}/{self.wish.undo_id}"))

    def _refusal(self, fact: str, next_step: str) -> InvalidRequestError:
        return InvalidRequestError(
            fact,
            query_name=self.name,
            sink=self.startable.sink_place(),
            to_batch_id=self.wish.to_batch_id,
            last_batch_id=self.wish.last_batch_id,
            undoes=self.start.undoes,
            next_step=next_step,
        )


def _start_that_undoes(attempt: Attempt, name: str) -> StartPlan | None:
    """The start whose undo this one has to see to; None where there is none.

    Its own; or that of a deployment before it that was to go back, and ended before it had a checkpoint of this query:
    the snapshot that it carried on stands where its start was to begin.
    """
    spec, seen = attempt.spec, set[str]()
    while spec.start.undoes is None:
        before = spec.start.predecessor_id
        if before is None or before in seen or spec.start.snapshot_id is None or _has_run(attempt, before, name):
            return None
        seen.add(before)
        try:
            spec = attempt.control.spec(before)
        except DeploymentNotFoundError:
            return None
    return spec.start


def _has_run(attempt: Attempt, deployment_id: str, name: str) -> bool:
    if _checkpoint(attempt, deployment_id, name).exists():
        return True
    return bool(_starts_of(attempt, deployment_id, name))


def _checkpoint(attempt: Attempt, deployment_id: str, name: str) -> Checkpoint:
    return Checkpoint(attempt.checkpoints, layout.checkpoint_folder(attempt.stream_id, deployment_id, name))


def _starts_of(attempt: Attempt, deployment_id: str, name: str) -> list[QueryStarted]:
    events = [entry.event for entry in attempt.control.journal(deployment_id).events()]
    return [event for event in events if isinstance(event, QueryStarted) and event.query_name == name]


def _wish(attempt: Attempt, name: str, known: QuerySnapshot, start: StartPlan) -> UndoOrder:
    position = known.position
    to_batch_id = NOTHING_STAYS if position.batch_id is None else position.batch_id
    # A snapshot's own planned batch may be in the sink: it is taken out, too, and runs again over its bounds (1a.6).
    planned: list[int | None] = [to_batch_id if position.planned_batch_id is None else position.planned_batch_id]
    query_ids = {known.query_id}
    for deployment_id in _undone_deployments(attempt, start):
        checkpoint = _checkpoint(attempt, deployment_id, name)
        told = _starts_of(attempt, deployment_id, name)
        query_ids |= {event.query_id for event in told}
        if checkpoint.exists():
            query_ids.add(checkpoint.query_id() or "")
            last = checkpoint.position().last_batch_id
            planned.append(NOTHING_STAYS if last is None else last)
        elif told:
            planned.append(None)  # it is gone: nobody knows any more how far it got
    known_ids = [batch_id for batch_id in planned if batch_id is not None]
    return UndoOrder(
        f"{attempt.stream_id}-{attempt.deployment_id}-{attempt.spec.created_at:%Y%m%dT%H%M%S}",
        to_batch_id,
        frozenset(query_ids - {""}),
        max(known_ids) if len(known_ids) == len(planned) else None,
    )


def _undone_deployments(attempt: Attempt, start: StartPlan) -> Iterator[str]:
    """From the last one down to the one that the snapshot is of, which may have gone on behind it."""
    manifest = attempt.control.readable_manifest(start.snapshot_id or "")
    first = None if manifest is None else manifest.deployment_id
    found = attempt.spec.start.predecessor_id or start.undoes
    seen = set()
    while found is not None and found not in seen:
        seen.add(found)
        yield found
        if found == first:
            return
        try:
            found = attempt.control.spec(found).start.predecessor_id
        except DeploymentNotFoundError:
            return
