"""The requests for an upgrade and for a rollback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from airflow_streamstate.controller.observe.pace import NOISE
from airflow_streamstate.controller.observe.snapshot_age import check_max_age
from airflow_streamstate.controller.rehearsal.planning import check_rehearsed
from airflow_streamstate.controller.request.changes import ChangeRequest
from airflow_streamstate.controller.request.literal_secrets import check_secrets
from airflow_streamstate.controller.request.version import digest_of
from airflow_streamstate.controller.request.whole_version import WholeVersion
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.ids import check_id, check_stream_id
from airflow_streamstate.protocol.references import is_reference, split_argument
from airflow_streamstate.protocol.rehearsals import REHEARSED_BATCHES, REHEARSED_ROWS
from airflow_streamstate.protocol.upgrades import HealthyWhen, ReturnWay, UpgradeMode

MODES: tuple[UpgradeMode, ...] = ("auto", "restore", "drain", "fresh")
WAYS: tuple[ReturnWay, ...] = ("forward", "undo")
LEAST_SLOWER_FACTOR, MOST_SLOWER_FACTOR = NOISE, 1_000.0


@dataclass(frozen=True)
class UpgradeRequest:
    """A stream is to run another version on its state.

    Attributes:
        change: what changes; everything else stays as it runs now. Without a change this is a restart. Or all of a
            version.
        mode: how the state is handed over. ``auto`` restores state that fits, and drains where it does not fit and
            ``allow_drain`` is set. Only ``fresh`` starts with empty state.
        allow_drain: ``auto`` may drain.
        accept_hazards: accept a ``hazardous`` plan; a difference that needs a drain still needs it.
        runs_batches: rehearse with an empty batch of each query; else compare the plans alone.
        rehearse_batches, rehearse_rows: how many of the newest batches the rehearsal runs again, and how many rows.
        warm: launch the driver that takes over before the other one is stopped; on the way back as well.
        warm_return: also keep a driver of the current version ready, from before its stop until the new version is
            healthy, so that a version that fails at once is replaced at once. Needs room for one driver more.
        needs_approval: wait for a person to approve the plan.
        approved_by_another: wait for another person than the one who asks for the upgrade.
        healthy_when: when the new version counts as healthy; else it is rolled back.
        undo_command: undoes the output of a ``foreachBatch`` of the new version in a rollback.

    Raises:
        InvalidRequestError: an option is wrong, or contradicts another.
    """

    change: ChangeRequest | WholeVersion
    mode: UpgradeMode = "auto"
    allow_drain: bool = False
    accept_hazards: bool = False
    runs_batches: bool = True
    warm: bool = True
    needs_approval: bool = False
    healthy_when: HealthyWhen = field(default_factory=HealthyWhen)
    rehearsal_within_seconds: float = 300.0
    undo_command: tuple[str, ...] = ()
    rehearse_batches: int = REHEARSED_BATCHES
    rehearse_rows: int = REHEARSED_ROWS
    warm_return: bool = False
    approved_by_another: bool = False

    def __post_init__(self) -> None:
        if self.warm_return and not self.warm:
            raise InvalidRequestError(
                "a driver that waits for the way back is a warm one, and none is asked for",
                warm=self.warm,
                next_step="Leave out warm_return, or set warm.",
            )
        if self.mode not in MODES:
            raise InvalidRequestError(
                "unknown mode of handing over state", mode=str(self.mode)[:60], next_step=f"Use {', '.join(MODES)}."
            )
        if self.allow_drain and self.mode != "auto":
            raise InvalidRequestError(
                "only mode auto decides whether to drain",
                mode=self.mode,
                next_step="Leave out allow_drain, or use mode auto.",
            )
        self._check_rewrite()
        check_healthy_when(self.healthy_when)
        check_seconds("rehearsal_within_seconds", self.rehearsal_within_seconds)
        check_undo_command(self.undo_command)
        check_rehearsed(self.rehearse_batches, self.rehearse_rows)

    def _check_rewrite(self) -> None:
        if self.change.rewrite is None:
            return
        if self.mode not in ("auto", "restore") or self.allow_drain:
            raise InvalidRequestError(
                "state that is written anew is restored, not drained",
                mode=self.mode,
                allow_drain=self.allow_drain,
                next_step="Leave out the mode and allow_drain; or drain, and give the new version its settings (conf).",
            )
        if not self.runs_batches:
            raise InvalidRequestError(
                "state is written anew only after a rehearsal on a fork of it, and none is asked for",
                runs_batches=self.runs_batches,
                next_step="Leave out --no-rehearsal.",
            )

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.change.stream_id

    @property
    def digest(self) -> str:
        """Over the whole request. Raises InvalidRequestError where a file cannot be read."""
        asked = {**vars(self), "change": self.change.digest, "healthy_when": asdict(self.healthy_when)}
        return digest_of({"verb": "upgrade", **asked})


@dataclass(frozen=True)
class RollbackRequest:
    """A stream is to run again what it ran before its current deployment.

    Attributes:
        way: ``forward``: the old code goes on from the last commit of the new one; ``undo``: back to where the new one
            began, with the sinks undone; None for the first exact way.
        undo_command: undoes the output of a ``foreachBatch``.
        accepts_duplicates: rows may come twice on sinks that cannot be undone.
        snapshot_id: go back to this older snapshot with the code that it was taken of, and undo all later batches;
            for a lost checkpoint, or for more than one wrong version. None for the version before.
        max_snapshot_age_seconds: refuse an older snapshot; None for no bound.
        healthy_when: when the old version counts as healthy.
        warm: launch its driver before the current one is stopped.
        accept_lost_input: queries that may go on although input after their offsets is gone.

    Raises:
        InvalidRequestError: an option is wrong, or contradicts another.
    """

    stream_id: str
    way: ReturnWay | None = None
    undo_command: tuple[str, ...] = ()
    accepts_duplicates: bool = False
    snapshot_id: str | None = None
    healthy_when: HealthyWhen = field(default_factory=HealthyWhen)
    rehearsal_within_seconds: float = 300.0
    reason: str = ""
    max_snapshot_age_seconds: float | None = None
    warm: bool = True
    accept_lost_input: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_stream_id(self.stream_id)
        if self.way is not None and self.way not in WAYS:
            raise InvalidRequestError("unknown way back", way=str(self.way)[:60], next_step="Use forward or undo.")
        if self.accepts_duplicates and self.way == "forward":
            raise InvalidRequestError(
                "the way forward makes no duplicates, so there are none to accept",
                way=self.way,
                next_step="Leave out accepts_duplicates, or use the way undo.",
            )
        if self.snapshot_id is not None:
            check_id(self.snapshot_id, "snapshot id")
            if self.way == "forward":
                raise InvalidRequestError(
                    "there is no way forward from an older snapshot",
                    snapshot_id=self.snapshot_id,
                    next_step="Leave out the snapshot, or the way.",
                )
        check_max_age(self.max_snapshot_age_seconds)
        if self.max_snapshot_age_seconds is not None and self.snapshot_id is None:
            raise InvalidRequestError(
                "a maximum age needs a snapshot, and none was named",
                max_snapshot_age_seconds=self.max_snapshot_age_seconds,
                next_step="Name the snapshot, or leave out its age.",
            )
        check_healthy_when(self.healthy_when)
        if self.healthy_when.roll_back_if_slower is not None:
            raise InvalidRequestError(
                "a rollback is never rolled back for being slower",
                roll_back_if_slower=self.healthy_when.roll_back_if_slower,
                next_step="Leave it out.",
            )
        check_seconds("rehearsal_within_seconds", self.rehearsal_within_seconds)
        check_undo_command(self.undo_command)

    @property
    def digest(self) -> str:
        """Over the whole request."""
        return digest_of({"verb": "rollback", **vars(self), "healthy_when": asdict(self.healthy_when)})


def check_healthy_when(healthy_when: HealthyWhen) -> None:
    """Raises InvalidRequestError for a value that no version could meet."""
    factor = healthy_when.roll_back_if_slower
    if factor is not None and not LEAST_SLOWER_FACTOR <= factor <= MOST_SLOWER_FACTOR:
        raise InvalidRequestError(
            "this factor cannot tell a slower version",
            roll_back_if_slower=factor,
            next_step=f"Use {LEAST_SLOWER_FACTOR:g} to {MOST_SLOWER_FACTOR:,.0f}; 2 means that it reads half as much.",
        )
    if not 1 <= healthy_when.batches <= 1_000_000:
        raise InvalidRequestError(
            "a healthy version needs at least one batch", batches=healthy_when.batches, next_step="Use 1 or more."
        )
    check_seconds("healthy_within_seconds", healthy_when.within_seconds)


def check_undo_command(words: Sequence[str]) -> None:
    """Raises InvalidRequestError where the command seems to hold a secret: it is recorded and run as it is."""
    try:
        check_secrets({}, words, {}, may_be_literal=False)
        is_plain = not any(is_reference(split_argument(word)[1]) for word in words)
    except InvalidRequestError:
        is_plain = False
    if not is_plain:
        raise InvalidRequestError(
            "this command seems to hold a secret, or a reference to one, and would be recorded as it is",
            command=words[0],
            next_step="Have it read the secret itself, from a file or from a variable of the driver's environment.",
        )


def check_seconds(name: str, seconds: float) -> None:
    """Raises InvalidRequestError unless 0 < seconds <= 30 days."""
    if not 0 < seconds <= 30 * 86_400:
        raise InvalidRequestError("this time is out of range", **{name: seconds}, next_step="Use 1 second to 30 days.")
