"""Errors to Airflow: the one mapping, by remedy (docs/reference/errors.md).

What trying again can mend is an ``AirflowException``, which Airflow retries; everything else an
``AirflowFailException``, which it does not. Trying again is safe: a task's request ids do not change with its tries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_streamstate import errors
from airflow_streamstate.errors import (
    ObjectExistsError,
    Remedy,
    StreamStateError,
    VersionConflictError,
)
from airflow_streamstate.protocol.causes import cause_of_failure

# READ_BACK: the same request finds what landed. INSPECT: a deadline, or a failed deployment whose next attempt the
# retry is.
_RETRYABLE = frozenset({Remedy.RETRY, Remedy.INSPECT, Remedy.READ_BACK})
# A race that was lost is run again; a stream whose state forbids the request waits for a person.
_RETRYABLE_CONFLICTS = (ObjectExistsError, VersionConflictError)


_ERRORS: dict[str, type[StreamStateError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, StreamStateError)
}


def is_retryable(error: StreamStateError) -> bool:
    """Whether the same task may succeed when Airflow runs it again."""
    return error.remedy in _RETRYABLE or isinstance(error, _RETRYABLE_CONFLICTS)


def is_mistake(error: StreamStateError) -> bool:
    """Whether the DAG, a connection or the home has to be corrected: this says nothing about the stream itself."""
    return error.remedy in (Remedy.FIX, Remedy.REPAIR)


def airflow_exception_of(error: StreamStateError) -> AirflowException:
    """The exception that says the same to Airflow."""
    text = text_of(error)
    return AirflowException(text) if is_retryable(error) else AirflowFailException(text)


def text_of(error: StreamStateError) -> str:
    """The error for a task's log, one below the other: the cause, of a job that failed; the sentence and its facts, in
    one line; the long texts (traceback, log)."""
    cause = cause_of_failure(type(error).__name__, error.context)
    long_texts = {name: str(value) for name, value in error.context.items() if "\n" in str(value)}
    short = {name: value for name, value in error.context.items() if name not in long_texts}
    line = str(StreamStateError(error.message, next_step=error.next_step, **short))
    parts = [
        *([cause] if cause else []),
        f"{type(error).__name__}: {line}",
        *(f"--- {name} ---\n{text}" for name, text in long_texts.items()),
    ]
    return "\n".join(parts)


@contextmanager
def told_to_airflow() -> Iterator[None]:
    """Errors of this package leave the block as Airflow's."""
    try:
        yield
    except StreamStateError as error:
        raise airflow_exception_of(error) from error


def error_from_json(raw: object) -> StreamStateError:
    """The error that ``StreamStateError.to_json`` made this of; for what came through a trigger event.

    Raises:
        ValueError: it is none.
    """
    is_error = isinstance(raw, dict) and isinstance(raw.get("message"), str) and isinstance(raw.get("context"), dict)
    if not is_error or not isinstance(raw, dict):
        raise ValueError("not an error of this package")
    cls = _ERRORS.get(str(raw.get("type")))
    if cls is None:
        raise ValueError(f"no error class {str(raw.get('type'))[:60]!r}")
    context = {str(key): value for key, value in raw["context"].items() if key not in ("message", "next_step")}
    return cls(raw["message"], next_step=str(raw.get("next_step", "")), **context)
