"""The terms of single orders: which deployment obeys, by when, and what one verb alone has.

None of them is recorded of a stream, so no file of a stream has them.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.fields import QueryName, Seconds, Word
from airflow_streamstate.protocol.terms.declaration import REQUIRED, check_terms, term
from airflow_streamstate.protocol.terms.upgrade import MOST_BATCHES

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
        help="at {deadline_seconds}: fail withdraws an order that is not begun, and fails; kill ends the driver, which"
        " must run on the machine of the caller, and keeps its end in a snapshot, also that of a driver that had died",
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
        help="the time of the request, with a time zone: a request that comes too late takes no snapshot. By default"
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
        help="try again what was refused or given up for the same file",
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
