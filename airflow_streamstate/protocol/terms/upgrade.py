"""How an upgrade and a rollback take over: their terms, as they are given, and as they are recorded in the home."""

from __future__ import annotations

from typing import Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.fields import Seconds, SnapshotId, Word
from airflow_streamstate.protocol.terms.declaration import check_terms, term
from airflow_streamstate.protocol.terms.start import MOST_SNAPSHOT_AGE_SECONDS, HazardTerms, LostInputTerms

UpgradeMode = Literal["auto", "restore", "drain", "fresh"]
Strategy = Literal["forward", "undo"]
MOST_BATCHES, MOST_ROWS = 100, 1_000_000_000
"""That a rehearsal or a replay runs again."""
LEAST_SLOWER_FACTOR, MOST_SLOWER_FACTOR = 1.1, 1_000.0
_EVERY_VERB = ("rescale", "restart", "deploy")
_CONSENT, _HEALTHY, _REHEARSAL, _BACK = "Consent", "Healthy", "Rehearsal", "Way back"


@dataclass(frozen=True)
class TakeoverTerms:
    """What an upgrade and a rollback have in common."""

    warm: bool = term(
        True,
        help="launch the next driver while the other runs, also on the way back: needs room for two",
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
        help="seconds from its launch until it must be healthy. After that it is given up",
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
        help="the command that undoes what a foreachBatch wrote, if there is no other way back",
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
        help="give up a version that falls behind its input and is slower than the version before by this factor: 2"
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
                "a driver that waits for the way back is a warm one, and warm is off",
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
