"""Scratch runs: what a driver alongside a stream rehearses, replays or reads, and its verdict.

The driver of a rehearsal may then wait, warm, to become the first attempt of the deployment that takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import ClassVar, Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import (
    Attempt,
    DeploymentId,
    LaunchKey,
    Message,
    QueryName,
    QueryNameOrNone,
    RehearsalId,
    ScratchId,
    Seconds,
    SnapshotId,
    StreamId,
    Tagged,
    Word,
    message,
)
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.order import RehearsalTerms

ScratchOutcome = Literal["done", "failed", "deadline"]
QueryOutcome = Literal["accepted", "refused", "failed", "not_run"]
SeedTrial = Literal["never", "if_needed", "always"]

DEADLINE_SECONDS = 300.0
REPLAY_SECONDS = 600.0


@dataclass(frozen=True)
class Rehearsal(Tagged):
    """A version is tried on a fork of the state, before anything is stopped.

    Attributes:
        keeps_verdict: of each kind of run: its verdict is recorded, and stays with its record; else nothing stays.
        terms: what is tried.
        allow_new_queries: queries that may start with nothing although the snapshot does not know them.
        waits_until: until then the driver of an accepted version waits at the first ``start()`` of a further pass of
            the script; None: it ends with its verdict.
        refuses: verdicts of a plan by which the change is refused whatever Spark reports: the driver runs no batch
            then.
        seeds: whether another pass of the script tries its queries as they would be seeded after a drain: never; if the
            state does not fit; always.
        rewrite: how the state is rewritten first; None for as it is.
        move_sources: as in ``StartPlan``.
    """

    keeps_verdict: ClassVar[bool] = True

    terms: RehearsalTerms = field(default_factory=RehearsalTerms)
    allow_new_queries: tuple[QueryName, ...] = ()
    waits_until: datetime | None = None
    refuses: tuple[str, ...] = ()
    seeds: SeedTrial = "never"
    rewrite: StateRewrite | None = None
    move_sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def batches(self) -> int:
        """How many of the newest batches that read something are run again, over the state of before them."""
        return self.terms.rehearse_batches if self.terms.rehearse else 0


@dataclass(frozen=True)
class Replay(Tagged):
    """Recorded batches run again, into files, and nothing else is tried.

    Attributes:
        batches: by query the ids of its batches, ascending, one after the other.
        out: the absolute path of the folder on the driver's machine that gets their rows.
        compared_with: the ``out`` of a different replay of these batches, with whose rows these are compared; "" if
            there is no other.
        keeps_state: the state after the last batch is written below ``out``, too, and compared as the rows are.
        calls_foreach_batch: the script's own ``foreachBatch`` is called with the rows of each batch.
        debugger: the socket of a debugger on the driver's machine; "": not set.
    """

    keeps_verdict: ClassVar[bool] = True

    batches: Mapping[QueryName, tuple[int, ...]]
    out: Word
    compared_with: Word = ""
    keeps_state: bool = False
    calls_foreach_batch: bool = False
    debugger: Word = ""


@dataclass(frozen=True)
class Reading(Tagged):
    """The state in snapshots is read. The answer holds rows of the state, so it stays in the folder of the launch.

    Attributes:
        snapshot_ids: the snapshot, then the older one with which it is compared.
    """

    keeps_verdict: ClassVar[bool] = False

    snapshot_ids: tuple[SnapshotId, ...]


@message
@dataclass(frozen=True)
class ScratchRun(Message):
    """A driver that tries or reads something alongside a stream.

    Written before anything else of it, so that what is left can be removed. Its ``DeploymentSpec`` has the same keys as
    that of a deployment.

    Attributes:
        deployment_id: whose state or batches it uses: the current deployment, except in a replay or a reading of an
            older one.
        what: what its driver does.
        deadline_at: what has not ended by then is ended.
        request_id: a second request with the same id finds this run.
        request_digest: sha256 over what was asked; "" if a run is never found again.
        notes: human-readable, about what was asked.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    run_id: ScratchId
    deployment_id: DeploymentId
    what: Rehearsal | Replay | Reading
    created_at: datetime
    deadline_at: datetime
    requested_by: str
    request_id: str
    request_digest: str
    write_id: str
    notes: tuple[str, ...] = ()

    @property
    def rehearsal(self) -> Rehearsal:
        """What is rehearsed. Raises InvalidRequestError for a run of a different kind."""
        if isinstance(self.what, Rehearsal):
            return self.what
        raise self._of_another_kind("rehearsal", "plan")

    @property
    def replay(self) -> Replay:
        """What runs again. Raises InvalidRequestError for a run of a different kind."""
        if isinstance(self.what, Replay):
            return self.what
        raise self._of_another_kind("replay", "replay")

    def _of_another_kind(self, wanted: str, verb: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"this scratch run is no {wanted}",
            stream_id=self.stream_id,
            run_id=self.run_id,
            next_step=f"Name a {wanted}, as `streamstate {verb}` reports it.",
        )


@dataclass(frozen=True)
class RowComparison:
    """The rows of one batch by two versions, as two bags: a row that one has more often is only in that one.

    Attributes:
        same, only_old, only_new: how many rows.
        samples_old, samples_new: the first rows that only one has, each as JSON.
        changed: how many rows only the old version has for which the new one has another row with the same key; these
            are not among ``only_old`` and ``only_new``. None where no key is known.
        keys: the columns of the key.
        samples_changed: the first of these, each as JSON: ``key``, and of ``old`` and ``new`` the columns that differ.
    """

    same: int
    only_old: int
    only_new: int
    samples_old: tuple[str, ...] = ()
    samples_new: tuple[str, ...] = ()
    changed: int | None = None
    keys: tuple[str, ...] = ()
    samples_changed: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether both have the same rows."""
        return not self.only_old and not self.only_new and not self.changed


@dataclass(frozen=True)
class ReplayedBatch:
    """One batch of a replay.

    Attributes:
        rows_in: None where Spark does not report it.
        rows_out: in the files; None for a batch that failed.
        folder: of its files, absolute; "" for a batch that failed.
        files: their names.
        error: the script's own error, one line; "" without one.
        traceback: the error as it was raised; "" without one.
        comparison: with the rows of the other replay; None if that has none, or was not asked for.
        failed_at: where the script's own function failed: the place, and the values that it had there; "" otherwise.
    """

    batch_id: int
    rows_in: int | None = None
    rows_out: int | None = None
    seconds: Seconds = 0.0
    folder: Word = ""
    files: tuple[Word, ...] = ()
    error: str = ""
    traceback: str = ""
    comparison: RowComparison | None = None
    failed_at: str = ""


@dataclass(frozen=True)
class StateComparison:
    """The state that two versions leave in one table of an operator.

    Attributes:
        table: operator and table, e.g. ``0-stateStoreSave/rows``.
    """

    table: str
    comparison: RowComparison


@dataclass(frozen=True)
class RewrittenTable:
    """A table of an operator's state that was rewritten.

    Attributes:
        operator_id: Spark's number of the operator.
        table: operator and table, e.g. ``0-stateStoreSave/rows``.
        rows: that were read; None where Spark does not report it.
        is_migrated: its rows went through a function of the user.
        dropped, changed: of a migrated table; None if that was not counted.
        samples: of a migrated table, rows before and after, as JSON with ``key``, ``before`` and ``after``.
        partitions: of the new state.
        is_equal: it was compared, and no row differs; None where it was not.
    """

    operator_id: int
    table: str
    rows: int | None
    partitions: int
    is_migrated: bool = False
    dropped: int | None = None
    changed: int | None = None
    samples: tuple[str, ...] = ()
    is_equal: bool | None = None


@dataclass(frozen=True)
class RehearsedQuery(View):
    """The outcome of one query of the new version.

    Attributes:
        outcome: ``accepted``: it would start, and an empty batch ran on its state; ``refused`` by a rule of this
            package; ``failed`` in Spark; ``not_run``: no batch was asked for, or none was possible.
        start: how it would start: ``restored``, ``seeded``, ``fresh``; "" where the snapshot does not know it.
        error: why not; one line, no secrets.
        notes: for humans, about its start.
        batch_ids: the batch that a failed query had planned, and committed ones that ran again, with their rows; empty
            without any.
        rows_in, rows_out: of these; None where none ran, or where Spark does not report it.
        batch_seconds: that these took.
        fails_with_rows: its state fits, and one of these batches failed.
        replayed: of a replay, the batches that ran, the one that failed among them.
        state: of a replay, the state after the last batch, compared with that of the other replay; empty without one.
        rewritten: the state that was rewritten; empty without any.
    """

    form: ClassVar[str] = "* error|null"

    outcome: QueryOutcome
    start: str = ""
    seconds: Seconds = 0.0
    error: str = ""
    notes: tuple[str, ...] = ()
    batch_ids: tuple[int, ...] = ()
    rows_in: int | None = None
    rows_out: int | None = None
    batch_seconds: Seconds = 0.0
    fails_with_rows: bool = False
    replayed: tuple[ReplayedBatch, ...] = ()
    state: tuple[StateComparison, ...] = ()
    rewritten: tuple[RewrittenTable, ...] = ()


@message
@dataclass(frozen=True)
class ScratchVerdict(Message):
    """The one outcome of a rehearsal or a replay: from its driver, or from a controller if that died or hung.

    Attributes:
        outcome: ``done``: the script came to its end; ``failed``: it did not, or its driver died; ``deadline``.
        queries: those that it started, by name.
        error: why it is not done; one line, no secrets.
        traceback, log_tail: of a script that failed, of a driver that died.
        seconds: from the driver's first line to the end.
        spark_version: "" without a session.
        given_by: ``driver`` or ``controller``.
        seeded: the outcomes of the queries tried as after a drain; {} without such a pass.
        seed_error: why that pass of the script did not come to its end; else "".
    """

    stream_id: StreamId
    run_id: ScratchId
    outcome: ScratchOutcome
    queries: Mapping[QueryName, RehearsedQuery]
    error: str
    seconds: Seconds
    given_by: str
    given_at: datetime
    write_id: str
    traceback: str = ""
    log_tail: str = ""
    spark_version: str = ""
    notes: tuple[str, ...] = ()
    seeded: Mapping[QueryName, RehearsedQuery] = field(default_factory=dict)
    seed_error: str = ""

    @property
    def is_accepted(self) -> bool:
        """Whether the script came to its end, with no query refused or failed."""
        return self.outcome == "done" and not _refused(self.queries)

    @property
    def is_accepted_as_seed(self) -> bool:
        """The same for a start after a drain; False if that was not tried."""
        return self.outcome == "done" and bool(self.seeded) and not self.seed_error and not _refused(self.seeded)

    @property
    def can_take_over(self) -> bool:
        """Whether its driver may take over, after a stop or after a drain."""
        return self.is_accepted or self.is_accepted_as_seed

    @property
    def why_not(self) -> str:
        """The first obstacle, one line; "" without one."""
        refused = (query.error for query in self.queries.values() if query.outcome in ("refused", "failed"))
        return self.error or next(refused, "")


def _refused(queries: Mapping[str, RehearsedQuery]) -> bool:
    return any(query.outcome in ("refused", "failed") for query in queries.values())


@message
@dataclass(frozen=True)
class Waiting(Message):
    """The driver of a rehearsal waits at the first ``start()`` of its second pass; nothing is claimed.

    Attributes:
        query_name: as the script named that query; "" for unnamed.
    """

    stream_id: StreamId
    rehearsal_id: RehearsalId
    at: datetime
    write_id: str
    query_name: QueryNameOrNone = ""


@message
@dataclass(frozen=True)
class Handover(Message):
    """The waiting driver becomes this attempt, and claims it; written after its ``LaunchRecord``.

    Attributes:
        launch_key: of the attempt; the driver's own launch has the key of its rehearsal.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    rehearsal_id: RehearsalId
    deployment_id: DeploymentId
    attempt: Attempt
    launch_key: LaunchKey
    handed_over_at: datetime
    write_id: str
