"""Errors as Airflow's exceptions (docs/reference/errors.md), and values that are refused when a DAG is parsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException

from airflow_streamstate import errors
from airflow_streamstate.errors import (
    InvalidRequestError,
    ObjectExistsError,
    Remedy,
    StreamStateError,
    VersionConflictError,
)
from airflow_streamstate.hooks.configuration import count_task
from airflow_streamstate.protocol.ids import check_id
from airflow_streamstate.protocol.redaction import cause_of_failure

# READ_BACK: the same request finds what was written. INSPECT: the retry waits on, or starts the next attempt.
_RETRYABLE = frozenset({Remedy.RETRY, Remedy.INSPECT, Remedy.READ_BACK})
# A lost race is retried; a stream whose state forbids the request needs a person.
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
    """Whether the DAG, a connection or the home has to be corrected; the stream itself may be well."""
    return error.remedy in (Remedy.FIX, Remedy.REPAIR)


def airflow_exception_of(error: StreamStateError) -> AirflowException:
    """The same error as Airflow's exception."""
    text = text_of(error)
    return AirflowException(text) if is_retryable(error) else AirflowFailException(text)


def text_of(error: StreamStateError) -> str:
    """The error for a task's log: the cause of a failed job, the message with its facts, the long texts (traceback)."""
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
def told_to_airflow(task: object | None = None) -> Iterator[None]:
    """Errors of this package leave the block as Airflow's; the end of ``task`` is counted in Airflow's metrics, unless
    it is deferred."""
    try:
        yield
    except StreamStateError as error:
        _count(task, error)
        raise airflow_exception_of(error) from error
    except AirflowSkipException:
        raise
    except Exception as error:
        _count(task, error)
        raise
    else:
        _count(task)


def _count(task: object | None, error: Exception | None = None) -> None:
    if task is not None:
        count_task(task, error)


def error_from_json(raw: object) -> StreamStateError:
    """The inverse of ``StreamStateError.to_json``, for trigger events.

    Raises:
        ValueError: this is no such error.
    """
    is_error = isinstance(raw, dict) and isinstance(raw.get("message"), str) and isinstance(raw.get("context"), dict)
    if not is_error or not isinstance(raw, dict):
        raise ValueError("not an error of this package")
    cls = _ERRORS.get(str(raw.get("type")))
    if cls is None:
        raise ValueError(f"no error class {str(raw.get('type'))[:60]!r}")
    context = {str(key): value for key, value in raw["context"].items() if key not in ("message", "next_step")}
    return cls(raw["message"], next_step=str(raw.get("next_step", "")), **context)


# Refuses, when a DAG is parsed, what no run of it could use: a wrong word or stream id that is no template.

_TEMPLATE_MARKS = ("{{", "{%", "{#")


class ChecksLiterals:
    """Mixin of operators and sensors, before Airflow's class; it checks fields as ``__init__`` sets them.

    A templated field is checked again when the task runs, with all other fields.
    """

    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The words that a field may have, by field."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, str) and not getattr(self, "_BaseOperator__instantiated", False):
            self._check_literal(name, value)
        super().__setattr__(name, value)

    def _check_literal(self, name: str, value: str) -> None:
        if any(mark in value for mark in _TEMPLATE_MARKS):
            return
        if name == "stream_id":
            check_id(value, "stream id")
        choices = self.literal_choices.get(name)
        if choices is not None and value not in ("", "None", *choices):
            raise InvalidRequestError(
                f"{name} of {type(self).__name__} is none of its words",
                given=value,
                next_step=f"Use one of: {', '.join(choices)}.",
            )
