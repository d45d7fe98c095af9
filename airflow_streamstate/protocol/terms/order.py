"""The terms of single orders, of state readings, and of upgrades and rollbacks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import QueryName, Seconds, SnapshotId, Word
from airflow_streamstate.protocol.terms.declaration import REQUIRED, check_terms, term
from airflow_streamstate.protocol.terms.version import MOST_SNAPSHOT_AGE_SECONDS, HazardTerms, LostInputTerms

# How an upgrade and a rollback take over: their terms, as they are given, and as they are recorded in the home.

UpgradeMode = Literal["auto", "restore", "drain", "fresh"]
Strategy = Literal["forward", "undo"]
MOST_BATCHES, MOST_ROWS = 100, 1_000_000_000
"""That a rehearsal or a replay runs again."""
LEAST_SLOWER_FACTOR, MOST_SLOWER_FACTOR = 1.1, 1_000.0
_EVERY_VERB = ("rescale", "restart", "deploy")
_CONSENT, _HEALTHY, _REHEARSAL, _BACK = "Consent", "Healthy", "Rehearsal", "Rollback"


@dataclass(frozen=True)
class TakeoverTerms:
    """What an upgrade and a rollback have in common."""

    warm: bool = term(
        True,
        help="launch the next driver while the other runs, also on a rollback: needs room for two",
        verbs=_EVERY_VERB,
    )
    rehearsal_deadline_seconds: Seconds = term(
        300.0,
        help="seconds until the rehearsal must have ended",
        heading=_REHEARSAL,
        verbs=_EVERY_VERB,
    )
    healthy_batches: int = term(
        3,
        help="batches that each query must commit past the handover. Of a query with the trigger availableNow or once"
        " the end of its run counts instead",
        heading=_HEALTHY,
        least=1,
        most=1_000_000,
        verbs=_EVERY_VERB,
    )
    healthy_deadline_seconds: Seconds = term(
        300.0,
        help="seconds from its launch until it must be healthy. After that it is abandoned",
        heading=_HEALTHY,
        verbs=_EVERY_VERB,
    )
    caught_up: bool = term(
        False,
        help="healthy only when no input is left to read, or no more than the version before had left",
        heading=_HEALTHY,
        verbs=_EVERY_VERB,
    )
    undo_command: tuple[Word, ...] = term(
        (),
        help="the command that undoes what a foreachBatch wrote, if there is no other rollback",
        heading=_BACK,
        kind="command",
        verbs=_EVERY_VERB,
    )

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True)
class RehearsalTerms:
    """What a rehearsal tries; of ``plan`` as well."""

    rehearse: bool = term(
        True,
        help="try each query on a fork of its state, without a sink: with an empty batch, then with its newest batches;"
        " else only compare the plans. The script runs once in both, with `STREAMSTATE_REHEARSAL=1` in its environment",
        flag="--rehearse/--no-rehearsal",
        heading=_REHEARSAL,
    )
    rehearse_batches: int = term(
        1,
        help="this many of the newest batches of each query run again, with their rows and without a sink",
        heading=_REHEARSAL,
        least=0,
        most=MOST_BATCHES,
        verbs=("rescale",),
    )
    rehearse_rows: int = term(
        100_000,
        help="about this many rows of these batches, at most",
        heading=_REHEARSAL,
        least=1,
        most=MOST_ROWS,
        verbs=("rescale",),
    )

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True)
class UpgradeTerms(HazardTerms, RehearsalTerms, TakeoverTerms):
    """How an upgrade takes over.

    Raises:
        InvalidRequestError: a term is wrong, or contradicts another.
    """

    mode: UpgradeMode = term(
        "auto",
        help="how the state is handed over: auto restores it if it fits, else drains with {allow_drain}; only fresh"
        " starts with empty state",
    )
    allow_drain: bool = term(
        False, help="drain if the state does not fit: open windows are written early", verbs=("deploy",)
    )
    needs_approval: bool = term(False, help="wait until a person approves the plan")
    approved_by_another: bool = term(False, help="as {needs_approval}, by another person")
    roll_back_if_slower: float | None = term(
        None,
        help="abandon a version that falls behind its input and is slower than the version before by this factor: 2"
        " means that it reads half the rows per second. By default it is kept, with a warning that has both rates",
        heading=_HEALTHY,
        metavar="FACTOR",
        least=LEAST_SLOWER_FACTOR,
        most=MOST_SLOWER_FACTOR,
        verbs=_EVERY_VERB,
    )
    warm_return: bool = term(
        False,
        help="also keep a driver of the current version ready, from before its stop until the new version is healthy:"
        " one that fails before its first commit is replaced at once. Needs room for three drivers for a moment, then"
        " for two",
        heading=_BACK,
        verbs=("rescale",),
    )

    def __post_init__(self) -> None:
        check_terms(self)
        if self.warm_return and not self.warm:
            raise InvalidRequestError(
                "a driver that waits for the rollback is a warm one, and warm is off",
                warm=self.warm,
                next_step="Leave out warm_return, or set warm.",
            )
        if self.allow_drain and self.mode != "auto":
            raise InvalidRequestError(
                "only mode auto decides whether to drain",
                mode=self.mode,
                next_step="Leave out allow_drain, or use mode auto.",
            )

    @property
    def waits_for_approval(self) -> bool:
        """Whether a person has to approve the plan."""
        return self.needs_approval or self.approved_by_another


@dataclass(frozen=True)
class RollbackTerms(LostInputTerms, TakeoverTerms):
    """How a rollback takes over.

    Raises:
        InvalidRequestError: a term is wrong, or contradicts another.
    """

    strategy: Strategy | None = term(
        None,
        help="how it goes back: forward, the old code continues from the last commit; undo, it continues from the"
        " handover, with the sinks undone. By default the first of them that is exact",
    )
    snapshot_id: SnapshotId | None = term(
        None,
        help="go back to this older snapshot and its code, with the sinks undone to it; for a lost checkpoint, or for"
        " more than one wrong version",
        metavar="ID",
    )
    max_snapshot_age_seconds: Seconds | None = term(
        None, help="refuse that snapshot if it is older", heading="Start", least=0.1, most=MOST_SNAPSHOT_AGE_SECONDS
    )
    accept_duplicates: bool = term(False, help="accept doubled rows on sinks that cannot be undone", heading=_CONSENT)

    def __post_init__(self) -> None:
        check_terms(self)
        if self.accept_duplicates and self.strategy == "forward":
            raise InvalidRequestError(
                "the strategy forward makes no duplicates, so nothing has to be accepted",
                strategy=self.strategy,
                next_step="Leave out accept_duplicates, or use the strategy undo.",
            )
        if self.snapshot_id is not None and self.strategy == "forward":
            raise InvalidRequestError(
                "the strategy forward continues from the last commit, and not from an older snapshot",
                snapshot_id=self.snapshot_id,
                next_step="Leave out the snapshot, or the strategy.",
            )
        if self.max_snapshot_age_seconds is not None and self.snapshot_id is None:
            raise InvalidRequestError(
                "a maximum age needs a snapshot, and none was named",
                max_snapshot_age_seconds=self.max_snapshot_age_seconds,
                next_step="Name the snapshot, or leave out its age.",
            )


DrainMode = Literal["default", "event_time"]
OnDrainDeadline = Literal["fail", "stop", "kill"]
"""What follows when a deadline of a drain passes: ``fail``: the driver withdraws the drain and the job runs on;
``stop``: the drain becomes a stop, state kept; ``kill``: the running batch is cut, and the next start runs it again."""
OnStopDeadline = Literal["fail", "kill"]
IfBusy = Literal["refuse", "wait"]
LEAST_SECONDS = 0.1
MOST_ORDER_SECONDS = 31_536_000.0
"""A year."""
MOST_AT_A_TIME = 1_000
_ORDER, _REPLAY = "Order", "Replay"


@dataclass(frozen=True)
class DeploymentChoice:
    """Which deployment of a stream is meant."""

    deployment_id: str | None = term(None, help="which deployment; by default the current one", metavar="ID")

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True)
class Expiry:
    """How long an order may wait for a driver."""

    expires_in_seconds: Seconds | None = term(
        None,
        help="the driver ignores an order that it reads later than this. By default there is no limit",
        heading=_ORDER,
        least=LEAST_SECONDS,
        most=MOST_ORDER_SECONDS,
    )

    def __post_init__(self) -> None:
        check_terms(self)


def _need_deadline(terms: object, action: str, deadline: str) -> None:
    if getattr(terms, action) != "fail" and getattr(terms, deadline) is None:
        raise InvalidRequestError(f"{action} needs {deadline}", next_step=f"Give {deadline}, or leave out {action}.")


@dataclass(frozen=True)
class StopTerms:
    """How long a stop may take.

    Raises:
        InvalidRequestError: a term is wrong, or contradicts another.
    """

    deadline_seconds: Seconds | None = term(
        None,
        help="seconds from the order until the stream must have stopped with a complete snapshot, in place of the"
        " timeout and of an expiry. By default there is no deadline",
        least=LEAST_SECONDS,
        most=MOST_ORDER_SECONDS,
    )
    on_deadline: OnStopDeadline = term(
        "fail",
        help="at {deadline_seconds}: fail withdraws an order that is not started, and fails; kill ends the driver,"
        " which must run on the machine of the caller, and keeps its end in a snapshot, also that of a dead driver",
    )

    def __post_init__(self) -> None:
        check_terms(self)
        _need_deadline(self, "on_deadline", "deadline_seconds")


@dataclass(frozen=True)
class DrainTerms:
    """How a drain is done.

    Raises:
        InvalidRequestError: a term is wrong, or contradicts another.
    """

    mode: DrainMode = term(
        "default",
        help="what is flushed: default flushes all state of the queries, event_time only moves the watermark",
    )
    rehearse: bool = term(
        True,
        help="first try the flush on a fork of the state, while the stream runs: the driver rejects a drain that would"
        " leave state, or whose flush would fail",
        flag="--rehearse/--no-rehearsal",
    )
    allow_state_loss: bool = term(False, help="accept state that the flush leaves: the next version drops it")
    batches_deadline_seconds: Seconds | None = term(
        None,
        help="seconds from the order until the batches in flight must be committed. By default there is no limit",
        least=LEAST_SECONDS,
        most=MOST_ORDER_SECONDS,
    )
    on_batches_deadline: OnDrainDeadline = term(
        "fail",
        help="at {batches_deadline_seconds}: fail withdraws the drain, and the stream continues; stop stops it with its"
        " state; kill cuts the batch, and the next start runs it again",
    )
    flush_deadline_seconds: Seconds | None = term(
        None,
        help="seconds from the start of the flush until it must be committed. By default there is no limit",
        least=LEAST_SECONDS,
        most=MOST_ORDER_SECONDS,
    )
    on_flush_deadline: OnDrainDeadline = term(
        "fail", help="at {flush_deadline_seconds}: fail, stop or kill, as for {on_batches_deadline}"
    )
    leave_queries: tuple[QueryName, ...] = term(
        (),
        help="queries that the script does not start: the drain leaves their state for the next deployment, and without"
        " their names it is refused",
        flag="--leave-query",
    )

    def __post_init__(self) -> None:
        check_terms(self)
        _need_deadline(self, "on_batches_deadline", "batches_deadline_seconds")
        _need_deadline(self, "on_flush_deadline", "flush_deadline_seconds")


DEFAULT_DRAIN = DrainTerms()


@dataclass(frozen=True)
class SnapshotTerms:
    """How a snapshot is requested.

    Raises:
        InvalidRequestError: a term is wrong.
    """

    requested_at: datetime | None = term(
        None,
        help="the time of the request, with a time zone: a request that arrives too late takes no snapshot. By default"
        " now, also when the order is repeated",
        heading=_ORDER,
        metavar="TIME",
    )
    ttl_seconds: Seconds | None = term(
        None,
        help="the driver ignores a request that is older than this. By default the deployment's setting",
        heading=_ORDER,
        least=0.001,
        most=MOST_ORDER_SECONDS,
    )
    consistent: bool = term(
        False, help="hold all queries at one barrier while it is taken: they finish their batches, and then continue"
    )

    def __post_init__(self) -> None:
        check_terms(self)
        if self.requested_at is not None and self.requested_at.tzinfo is None:
            raise InvalidRequestError(
                "requested_at has no time zone",
                requested_at=self.requested_at.isoformat(),
                next_step="Give it with one, as 2026-03-01T10:05:00Z.",
            )


DEFAULT_SNAPSHOT = SnapshotTerms()


@dataclass(frozen=True)
class SkipTerms:
    """Which batch is skipped.

    Raises:
        InvalidRequestError: a term is wrong.
    """

    batch_id: int = term(REQUIRED, help="the batch that the next start would run first", least=0)
    query_name: str | None = term(
        None, help="the query, if several have a batch of this number planned", flag="--query", metavar="NAME"
    )
    accept_written_rows: bool = term(False, help="skip it although the sink may hold some of its output, which stays")

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True)
class BusyTerms:
    """What a change does while another one is under way."""

    if_busy: IfBusy = term(
        "refuse",
        help="while another upgrade or rollback of the stream is under way: refuse fails at once; wait waits for its"
        " end within the timeout, records nothing until then, and then plans against what runs. Several that wait start"
        " in any order",
        heading=_ORDER,
    )

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True)
class PlanTerms:
    """How long a plan may take, and what it replays.

    Raises:
        InvalidRequestError: a term is wrong, or contradicts another.
    """

    replay_batches: int = term(
        0,
        help="the newest batches of each query, this many, also run in the recorded version and in the new one, into"
        " files, and their rows are compared; 0 replays none",
        flag="--replay",
        heading=_REPLAY,
        metavar="K",
        least=0,
        most=MOST_BATCHES,
    )
    fail_on_changed_rows: bool = term(
        False,
        help="with {replay_batches}: fail unless each replayed batch has the same rows in both versions. If nothing can"
        " be replayed, the plan alone decides",
        heading=_REPLAY,
    )
    deadline_seconds: Seconds = term(
        300.0,
        help="seconds until the rehearsal is ended, and each of the two runs of a replay",
        most=MOST_ORDER_SECONDS,
    )

    def __post_init__(self) -> None:
        check_terms(self)
        if self.fail_on_changed_rows and not self.replay_batches:
            raise InvalidRequestError(
                "fail_on_changed_rows compares replayed batches, and none is replayed",
                next_step="Give replay_batches, or leave out fail_on_changed_rows.",
            )


@dataclass(frozen=True)
class FileTerms:
    """How files of streams are read."""

    root: Path | None = term(
        None,
        help="refuse a file whose paths leave this folder, links followed. By default there is no limit",
        metavar="FOLDER",
        kind="path",
    )


@dataclass(frozen=True)
class CompareTerms:
    """How far files of streams are compared with what runs."""

    rehearse: bool = term(True, help="rehearse each changed version, as `plan` does", flag="--rehearse/--no-rehearsal")
    rehearsal_deadline_seconds: Seconds = term(
        300.0, help="seconds until a rehearsal must have ended", most=MOST_ORDER_SECONDS
    )

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True)
class WaveTerms:
    """In which order the streams of a folder are changed, and when the others are left.

    Raises:
        InvalidRequestError: a term is wrong.
    """

    canary: str = term(
        "",
        help="streams with this label (NAME or NAME=VALUE) come first; unless all of them become well, no other stream"
        " is touched",
        metavar="LABEL",
        verbs=("compare", "apply"),
    )
    wave: int = term(1, help="how many streams are changed at a time", least=1, most=MOST_AT_A_TIME, verbs=("compare",))
    prune: bool = term(
        False,
        help="also the streams of the home that no file of the folder declares: they are stopped, their state stays",
        verbs=("compare",),
    )
    stop_after_failures: int | None = term(
        None, help="start no other stream after this many failures", metavar="K", least=1, verbs=("apply",)
    )
    healthy_for_seconds: Seconds = term(
        0.0,
        help="seconds that the changed streams of a wave must stay well before the next wave; 0 does not watch them",
        least=0.0,
        most=MOST_ORDER_SECONDS,
        verbs=("apply",),
    )
    try_again: bool = term(
        False,
        help="try again what was refused or abandoned for the same file",
        flag="--again",
        verbs=("apply",),
    )
    timeout_seconds: Seconds = term(
        600.0,
        help="seconds to wait for each deploy and each stop; for an upgrade the file has its own",
        most=MOST_ORDER_SECONDS,
        verbs=("apply",),
    )

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True)
class PruneTerms:
    """Whether a pruning removes anything."""

    dry_run: bool = term(
        False,
        help="only report what would be removed, and why",
        names={"operators": "report_only"},  # a task has a method dry_run
    )


@dataclass(frozen=True)
class RetireTerms:
    """Whether a retired stream stays in the home."""

    delete: bool = term(
        False, help="remove the whole stream, with all snapshots, pinned ones too. This cannot be undone"
    )


@dataclass(frozen=True)
class MirrorTerms:
    """Where copies of snapshots go."""

    mirrors: tuple[Word, ...] = term(
        (), help="URIs to use instead of the mirrors of the current deployment", flag="--to", metavar="URI"
    )

    def __post_init__(self) -> None:
        check_terms(self)


# The terms of reading the state of a snapshot with a separate Spark driver.

LOCAL_MASTER = "local[*]"
SHOWN_ROWS = 20
"""Of a state, unless more are asked for."""
ExportFormat = Literal["parquet", "delta"]
_READING_VERBS = ("diff", "verify")


@dataclass(frozen=True, kw_only=True)
class ReaderTerms:
    """The driver that reads."""

    master: Word = term(
        LOCAL_MASTER, help="Spark's master for the driver that reads", metavar="URL", verbs=_READING_VERBS
    )
    conf: Mapping[str, str] = term(
        {},
        help="Spark configuration that overrides the deployment's; a value may be a reference to a secret",
        verbs=_READING_VERBS,
    )
    spark: Word = term(
        "",
        help="the Spark that reads, instead of the deployment's: an installation, or a virtual environment that has"
        " pyspark. The deployment's packages and jars, which are for its own Spark, are then left out. Spark 3.5 cannot"
        " read state: without this, the pyspark of the caller reads what it wrote",
        metavar="PATH",
        verbs=_READING_VERBS,
    )
    packages: tuple[Word, ...] = term(
        (),
        help="Maven packages in addition to the deployment's",
        metavar="COORDINATES",
        takes_commas=True,
        verbs=_READING_VERBS,
    )
    deadline_seconds: Seconds = term(
        600.0, help="seconds until the driver is ended", most=MOST_ORDER_SECONDS, verbs=_READING_VERBS
    )

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True, kw_only=True)
class ReadingTerms(ReaderTerms):
    """What is read."""

    snapshot_id: str | None = term(
        None,
        help="the snapshot; by default the newest one with state",
        metavar="ID",
        verbs=("verify",),
    )
    query_name: str | None = term(None, help="only this query", flag="--query", metavar="NAME", verbs=("diff",))


@dataclass(frozen=True, kw_only=True)
class ExportTerms:
    """Where an export of state goes."""

    out: str = term(REQUIRED, help="a folder, or a URI that Spark can write to; not in the home", metavar="URI")
    format: ExportFormat = term(
        "parquet", help="parquet, or delta, which needs its packages and conf unless the deployment has them"
    )
    overwrite: bool = term(False, help="replace an earlier export there; other files are never replaced")
    changes_since: str | None = term(
        None,
        help="write the upserts and deletes that lead from this older snapshot to the newer one",
        metavar="ID",
    )

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True, kw_only=True)
class VerifyTerms:
    """How thoroughly a snapshot is verified."""

    deep: bool = term(False, help="also load every row of its state with Spark")
