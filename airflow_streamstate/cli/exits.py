"""Exit statuses: the only place that decides them.

| status | when |
|---|---|
| 0 | the command has succeeded; with --async: the order is recorded |
| 1 | the command has failed; or the inspected object is not well |
| 2 | the command line is wrong, or names something that does not exist |
| 3 | the awaited end did not come in time |
| 4 | refused: the stream, its data or another caller's work forbids it; nothing was changed |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentRefusedError,
    FencedError,
    HomeFormatError,
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    ReadOnlyError,
    StartRefusedError,
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
NOT_WELL = frozenset({"degraded", "failed", "lost", "silent", "unreadable"})
"""States in which a stream, or a query of it, has failed, has ended without a record, or is unknown."""
_REFUSALS = (
    ConflictError,
    DeploymentRefusedError,
    FencedError,
    HomeFormatError,
    IncompatibleUpgradeError,
    InputLostError,
    StartRefusedError,
    UnsupportedCheckpointError,
)


def exit_status_of(error: StreamStateError) -> int:
    """The exit status of a command that ends with this error."""
    if isinstance(error, DeadlineExceededError):
        return DEADLINE
    if isinstance(error, _REFUSALS):
        return REFUSED
    if isinstance(error, InvalidRequestError) and not isinstance(error, ReadOnlyError):
        return USAGE  # a read-only disk is no error of the command line
    return FAILED


def status_of_findings(*, is_well: bool) -> int:
    """Of a command that only looks: 1 if the object is not well."""
    return DONE if is_well else FAILED


def status_of_states(states: Iterable[str]) -> int:
    """Of ``status`` and ``list``: 1 if a stream is not well."""
    return status_of_findings(is_well=NOT_WELL.isdisjoint(states))


def status_of_several(errors: Sequence[StreamStateError], done: int) -> int:
    """Of a command that acts on several streams, of which ``done`` succeeded.

    1 if there is an error; if none succeeded and all errors have the same status, that one.
    """
    statuses = {exit_status_of(error) for error in errors}
    if not statuses:
        return DONE
    return statuses.pop() if len(statuses) == 1 and not done else FAILED


def status_of_applied(results: Iterable[str]) -> int:
    """Of ``apply``, by the results of the streams that are not as declared."""
    left = set(results)
    if not left:
        return DONE
    return REFUSED if left == {"refused"} else FAILED


def status_of_rehearsal(outcome: Literal["fits", "refused", "failed", "deadline"], *, is_as_asked: bool = True) -> int:
    """Of a rehearsal; ``is_as_asked``: whether the rows of its replay are those that were asked for."""
    return {
        "fits": status_of_findings(is_well=is_as_asked),
        "refused": REFUSED,
        "failed": FAILED,
        "deadline": DEADLINE,
    }[outcome]


def status_of_replay(outcome: Literal["done", "refused", "failed", "deadline"], *, is_as_asked: bool = True) -> int:
    """Of a replay; ``is_as_asked``: whether its rows are those that were asked for."""
    done = status_of_findings(is_well=is_as_asked)
    return {"done": done, "refused": REFUSED, "failed": FAILED, "deadline": DEADLINE}[outcome]


def status_of_upgrade(view: UpgradeView, cancelled: AfterStop | None = None) -> int:
    """Of an upgrade or rollback.

    ``cancelled`` is the end that the caller has asked for by a cancellation or a rejection, else None.
    """
    if view.is_what_was_asked if cancelled is None else view.is_end_of_cancel(cancelled):
        return DONE
    # ``upgraded``: the cancellation came too late.
    return REFUSED if view.outcome in ("refused", "upgraded") else FAILED
