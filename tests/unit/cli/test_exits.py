"""Errors to exit statuses."""

from __future__ import annotations

import inspect

import pytest

from airflow_streamstate import errors
from airflow_streamstate.cli.exits import DEADLINE, FAILED, REFUSED, USAGE, exit_status_of
from airflow_streamstate.errors import Remedy, StreamStateError

ERRORS = [
    cls
    for cls in vars(errors).values()
    if inspect.isclass(cls) and issubclass(cls, StreamStateError) and cls is not StreamStateError
]
STATUS_OF = {
    Remedy.FIX: {USAGE},
    Remedy.RETRY: {FAILED},
    Remedy.REREAD: {REFUSED},
    Remedy.READ_BACK: {FAILED},
    Remedy.STOP: {REFUSED},
    Remedy.REPAIR: {FAILED},
    Remedy.INSPECT: {FAILED, DEADLINE},
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda cls: cls.__name__)
def test_the_exit_status_follows_from_the_remedy(error: type[StreamStateError]) -> None:
    """Whoever reads only the exit status knows what to do next, as docs/errors.md says."""
    by_name = {errors.IncompatibleUpgradeError: {REFUSED}, errors.ReadOnlyError: {FAILED}}
    expected = by_name.get(error, STATUS_OF[error.remedy])
    assert exit_status_of(error("it is so")) in expected


def test_only_a_deadline_ends_with_three() -> None:
    """Exit status 3 says that the work goes on, and nothing else says it."""
    assert [cls for cls in ERRORS if exit_status_of(cls("it is so")) == DEADLINE] == [errors.DeadlineExceededError]
