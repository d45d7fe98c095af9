"""What Spark itself says in an error: one line, of where it came from, without the story around it.

A query that fails says ``STREAM_FAILED`` with its plan and its offsets; the error class that tells something, such as
``STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE``, is that of the cause below.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

MAX_CAUSES = 20


def spark_words(error: BaseException) -> str:
    """The first line of an error's origin: ``[CLASS] message`` where Spark has a class for it, else type and message.

    Args:
        error: of pyspark, of py4j, or any other.
    """
    origin = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    if origin is not None:
        try:
            return _first_line_of(_innermost(origin))
        except (Py4JError, OSError):
            pass  # the JVM is gone meanwhile: what was copied of it must do
    return _line(type(error).__name__, str(error))


def _innermost(throwable: Any) -> Any:
    for _ in range(MAX_CAUSES):
        cause = throwable.getCause()
        if cause is None:
            break
        throwable = cause
    return throwable


def _first_line_of(throwable: Any) -> str:
    return _line(str(throwable.getClass().getSimpleName()), str(throwable.getMessage() or ""))


def _line(kind: str, message: str) -> str:
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    if first.startswith("["):
        return first
    return f"{kind}: {first}" if first else kind
