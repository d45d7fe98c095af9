"""Errors as Airflow's exceptions."""

from __future__ import annotations

import inspect

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_streamstate import errors
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentFailedError,
    FencedError,
    HomeAwayError,
    InvalidRequestError,
    ObjectExistsError,
    OutcomeUnknownError,
    SnapshotCorruptError,
    StillReadingError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.hooks.refusals import airflow_exception_of, error_from_json, text_of, told_to_airflow

ALL = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, StreamStateError) and value is not StreamStateError
]
RETRIED = {
    UnavailableError,
    HomeAwayError,
    StillReadingError,
    OutcomeUnknownError,
    DeadlineExceededError,
    DeploymentFailedError,
    ObjectExistsError,
    VersionConflictError,
}


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_airflow_retries_what_trying_again_can_mend_and_nothing_else(cls: type[StreamStateError]) -> None:
    """One table decides, by remedy."""
    exception = airflow_exception_of(cls("something is so"))
    assert isinstance(exception, AirflowException)
    assert isinstance(exception, AirflowFailException) == (cls not in RETRIED)


@pytest.mark.parametrize("cls", [InvalidRequestError, ConflictError, FencedError, SnapshotCorruptError])
def test_what_a_person_must_decide_fails_at_once(cls: type[StreamStateError]) -> None:
    """A retry would only fail the same way later."""
    with pytest.raises(AirflowFailException, match=cls.__name__), told_to_airflow():
        raise cls("something is so", next_step="Do this.")


def test_the_task_log_says_the_cause_first_then_the_sentence_and_the_long_texts_below() -> None:
    """A traceback in the middle of a line is unreadable; its last line is what a person looks for."""
    traceback = 'Traceback (most recent call last):\n  File "job.py", line 3, in <module>\nValueError: boom'
    error = DeploymentFailedError("it failed", traceback=traceback, attempt=2, next_step="Fix it.")
    sentence = "DeploymentFailedError: it failed. attempt=2. Fix it."
    assert text_of(error) == f"ValueError: boom\n{sentence}\n--- traceback ---\n{traceback}"
    late = DeadlineExceededError("it is late", next_step="Look.")
    assert text_of(late) == "DeadlineExceededError: it is late. Look."


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_an_error_survives_the_way_through_an_event(cls: type[StreamStateError]) -> None:
    """What the triggerer saw fails the task just as it would have failed it in the worker."""
    error = cls("something is so", next_step="Do this.", attempt=2)
    back = error_from_json(error.to_json())
    assert type(back) is cls
    assert str(back) == str(error)


@pytest.mark.parametrize("raw", [None, {}, {"type": "ValueError", "message": "x", "context": {}}, {"message": 1}])
def test_what_is_no_error_of_ours_is_told(raw: object) -> None:
    """An event came through a database, perhaps of a different release."""
    with pytest.raises(ValueError, match="no"):
        error_from_json(raw)
