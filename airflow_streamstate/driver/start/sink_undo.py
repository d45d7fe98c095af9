"""Undoes a query's sink to its batch in an older snapshot, before the checkpoint is built from it (Law 14)."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.sink import NOTHING_STAYS, FoundUndo, UndoOrder
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import checkpoint_names, need_current
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.errors import ConflictError, DeploymentNotFoundError, InvalidRequestError
from airflow_streamstate.plan.datasets import is_fed_by
from airflow_streamstate.plan.record import last_recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Event, QueryStarted, Undoing, Undone, UndoneBy
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.records import StartPlan

COMMAND_SECONDS = 3_600.0
MAX_OUTPUT_CHARACTERS = 8_000
MAX_REMOVED = 100
VARIABLE = "STREAMSTATE_UNDO_"


def undo_sink(attempt: Attempt, name: str, startable: StartableQuery, known: QuerySnapshot) -> str:
    """Undo the sink of a query whose checkpoint is about to be built, where this start undoes one.

    Args:
        known: the query in the snapshot that the deployment starts from.

    Returns:
        The query id to continue with: the snapshot's, or another one where the sink remembers that one's batches.

    Raises:
        InvalidRequestError: the sink cannot be undone exactly, and the user did not accept another way.
        ConflictError: the undo failed, or another writer wrote to the sink in the meantime.
        FencedError: this attempt was replaced.
    """
    start = _start_that_undoes(attempt, name)
    if start is None:
        return known.query_id
    order = _order(attempt, name, known, start)
    _refuse_before_upstream(attempt, name, start)
    if order.last_batch_id is not None and order.last_batch_id <= order.to_batch_id:
        return known.query_id  # no batch was planned after the snapshot
    return _Undo(attempt, name, startable, known, start, order).run()


def _refuse_before_upstream(attempt: Attempt, name: str, start: StartPlan) -> None:
    """Refuse a query that reads another query's sink, if that query is not started, and so not undone, yet."""
    if start.undoes is None:
        return
    # A query whose start was refused there has a checkpoint and no plan: then the plan before counts.
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
            "this query reads what other queries have written, and that is undone only when they start",
            query_name=name,
            fed_by=sorted(feeding),
            next_step="Have the script start those first, then go back again.",
        )


@dataclass(frozen=True)
class _Undo:
    """The undo of one query's sink."""

    attempt: Attempt
    name: str
    startable: StartableQuery
    known: QuerySnapshot
    start: StartPlan
    order: UndoOrder

    def run(self) -> str:
        """As ``undo_sink``."""
        start, means = self.start, self.startable.undo_means()
        if means == "exact by undo":
            query_id = self._new_query_id() if self.startable.undo_needs_query_id() else self.known.query_id
            self._by_connector()
            return query_id
        if means == "only doubled":
            if not start.accept_duplicates:
                raise self._refusal(
                    "the sink cannot be undone: rows after the snapshot would be there twice",
                    "Deploy with --accept-duplicates to go back all the same, or start from the snapshot at the end of"
                    " the last deployment.",
                )
            self._told("doubled", FoundUndo(self._batches()), self._rows_again())
        elif start.undo_command:
            self._by_command(start.undo_command)
        else:
            raise self._refusal(
                "only you can undo this sink, and rows after the snapshot may be skipped or doubled",
                "Deploy with --undo-command, a command that removes the batches after the snapshot from it, or start"
                " from the snapshot at the end of the last deployment.",
            )
        return self.known.query_id

    def _by_connector(self) -> None:
        found = self.startable.find_undo(self.order)
        if found.target:
            need_current(self.attempt)
            self._write(Undoing, "undo", found)
            self.startable.undo_batches(self.order, found)
        self._told("undo", found)

    def _by_command(self, command: Sequence[str]) -> None:
        need_current(self.attempt)
        found = FoundUndo(self._batches(), target="what the command leaves")
        self._write(Undoing, "command", found)
        last = self.order.last_batch_id
        values = {
            "STREAM_ID": self.attempt.stream_id,
            "QUERY_NAME": self.name,
            "TO_BATCH_ID": str(self.order.to_batch_id),
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
                to_batch_id=self.order.to_batch_id,
                next_step="Its output is in the driver's log. Correct the cause, and resume the deployment: the command"
                " runs again.",
            )

    def _batches(self) -> tuple[int, ...]:
        last = self.order.last_batch_id
        return () if last is None else tuple(range(self.order.to_batch_id + 1, last + 1))

    def _rows_again(self) -> int | None:
        """At most how many input rows after the snapshot were read before; None where the sources do not report it."""
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
        """The offsets of a deployment's last planned batch; () where its log is gone."""
        checkpoint = _checkpoint(self.attempt, deployment_id, self.name)
        last = checkpoint.position().last_batch_id if checkpoint.exists() else None
        entry = None if last is None else checkpoint.read_offset(last)
        return () if entry is None else entry.source_lines

    def _told(self, means: UndoneBy, found: FoundUndo, rows_again: int | None = None) -> None:
        """Write ``Undone``, once, with what an earlier attempt removed before it died."""
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
        return isinstance(event, (Undoing, Undone)) and event.query_name == self.name

    def _write(
        self, kind: type[Undoing | Undone], means: UndoneBy, found: FoundUndo, rows_again: int | None = None
    ) -> None:
        place, first = self.startable.sink_place(), found.batch_ids[0] if found.batch_ids else None
        last = found.batch_ids[-1] if found.batch_ids else None
        which = "no known batch" if first is None else f"batches {first} to {last}"
        verb = {"doubled": "leaves as it was accepted"}.get(means, "undoes" if kind is Undoing else "has undone")
        self.attempt.reporter.say(
            f"query {self.name}: going back to batch {self.order.to_batch_id} {verb} {which} in {place}"
            + ("" if rows_again is None else f"; at most {rows_again:,} rows of input are written again")
        )
        self.attempt.reporter.write(
            kind,
            query_name=self.name,
            sink=place,
            means=means,
            to_batch_id=self.order.to_batch_id,
            first_batch_id=first,
            last_batch_id=last,
            target=found.target,
            removed=found.removed[:MAX_REMOVED],
            removed_count=len(found.removed),
            rows_again=rows_again,
        )

    def _new_query_id(self) -> str:
        """The same id at each try; another one for each deployment (Law 2)."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.known.query_id}/{self.name}/{self.order.undo_id}"))

    def _refusal(self, fact: str, next_step: str) -> InvalidRequestError:
        return InvalidRequestError(
            fact,
            query_name=self.name,
            sink=self.startable.sink_place(),
            to_batch_id=self.order.to_batch_id,
            last_batch_id=self.order.last_batch_id,
            undoes=self.start.undoes,
            next_step=next_step,
        )


def _start_that_undoes(attempt: Attempt, name: str) -> StartPlan | None:
    """The start whose undo is still to be done: this deployment's, or that of one before it which ended before it had
    a checkpoint of this query; None if there is no such start."""
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


def _order(attempt: Attempt, name: str, known: QuerySnapshot, start: StartPlan) -> UndoOrder:
    position = known.position
    to_batch_id = NOTHING_STAYS if position.batch_id is None else position.batch_id
    # The sink may hold the snapshot's own planned batch, which runs again over its bounds (1a.6).
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
            planned.append(None)  # its log is gone, and with it how far it got
    known_ids = [batch_id for batch_id in planned if batch_id is not None]
    return UndoOrder(
        f"{attempt.stream_id}-{attempt.deployment_id}-{attempt.spec.created_at:%Y%m%dT%H%M%S}",
        to_batch_id,
        frozenset(query_ids - {""}),
        max(known_ids) if len(known_ids) == len(planned) else None,
    )


def _undone_deployments(attempt: Attempt, start: StartPlan) -> Iterator[str]:
    """From the last deployment down to the one that the snapshot is of."""
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
