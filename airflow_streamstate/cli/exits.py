"""Exit statuses: the one rule, and the one place that decides them.

| status | when |
|---|---|
| 0 | what was asked for is done; of an order with --async: it is recorded |
| 1 | it was tried, and failed; or what was looked at is not well |
| 2 | the command line is wrong, or names what is not there |
| 3 | what was waited for did not come in time |
| 4 | it was refused: the stream, its data, or the work of another caller forbids it, and the stream runs on as before |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    FencedError,
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    ReadOnlyError,
    StreamStateError,
    UnsupportedCheckpointError,
)

if TYPE_CHECKING:
    from airflow_streamstate.controller.upgrade.views import UpgradeView
    from airflow_streamstate.protocol.upgrades import AfterStop

DONE = 0
FAILED = 1
USAGE = 2
DEADLINE = 3
REFUSED = 4
_NOT_WELL = frozenset({"degraded", "failed", "lost", "unreadable"})
"""States in which a stream, or a query of it, has ended without a word, failed, or cannot be told of."""
_REFUSALS = (IncompatibleUpgradeError, InputLostError, ConflictError, FencedError, UnsupportedCheckpointError)


def exit_status_of(error: StreamStateError) -> int:
    """The exit status with which a command that met this error ends."""
    if isinstance(error, DeadlineExceededError):
        return DEADLINE
    if isinstance(error, _REFUSALS):
        return REFUSED
    if isinstance(error, InvalidRequestError) and not isinstance(error, ReadOnlyError):
        return USAGE  # a disk that is read-only is no word of the command line
    return FAILED


def status_of_findings(*, is_well: bool) -> int:
    """Of a command that looks: 1 where what it looked at is not well."""
    return DONE if is_well else FAILED


def status_of_states(states: Iterable[str]) -> int:
    """Of a command that tells where streams stand: 1 where one of them does not run as it was asked to."""
    return status_of_findings(is_well=_NOT_WELL.isdisjoint(states))


def status_of_several(errors: Sequence[StreamStateError], done: int) -> int:
    """Of a command that does one thing for each of several.

    Args:
        errors: one for each that was not done.
        done: how many were.

    Returns:
        The status of the errors where nothing was done and all have the same; else 1 where there is one.
    """
    statuses = {exit_status_of(error) for error in errors}
    if not statuses:
        return DONE
    return statuses.pop() if len(statuses) == 1 and not done else FAILED


def status_of_rehearsal(outcome: Literal["fits", "refused", "failed", "deadline"]) -> int:
    """Of a rehearsal, by the outcome of its report."""
    return {"fits": DONE, "refused": REFUSED, "failed": FAILED, "deadline": DEADLINE}[outcome]


def status_of_upgrade(view: UpgradeView, cancelled: AfterStop | None = None) -> int:
    """Of an upgrade or rollback that is over, or that its caller left.

    Args:
        view: where it stands.
        cancelled: what the caller wants of it, where the caller has cancelled it or rejected its plan; None where the
            caller wants what was asked for.
    """
    if view.is_what_was_asked if cancelled is None else view.is_end_of_cancel(cancelled):
        return DONE
    # ``upgraded`` is no end of a cancellation: it came too late, and was refused.
    return REFUSED if view.outcome in ("refused", "upgraded") else FAILED
