"""Errors to exit statuses: the one place that decides them.

0 done, 1 failed, 2 usage, 3 deadline, 4 refused (incompatible, conflict, fenced).
"""

from __future__ import annotations

from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    FencedError,
    IncompatibleUpgradeError,
    InvalidRequestError,
    ReadOnlyError,
    StreamStateError,
)

DONE = 0
FAILED = 1
USAGE = 2
DEADLINE = 3
REFUSED = 4


def exit_status_of(error: StreamStateError) -> int:
    """The exit status with which a command that met this error ends."""
    if isinstance(error, DeadlineExceededError):
        return DEADLINE
    if isinstance(error, IncompatibleUpgradeError | ConflictError | FencedError):
        return REFUSED
    if isinstance(error, InvalidRequestError) and not isinstance(error, ReadOnlyError):
        return USAGE  # a disk that is read-only is no word of the command line
    return FAILED
