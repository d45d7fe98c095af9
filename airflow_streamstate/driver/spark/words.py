"""Spark's own message in an error, in one line: that of the innermost cause, not the ``STREAM_FAILED`` around it."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

MAX_CAUSES = 20


def spark_words(error: BaseException) -> str:
    """The first line of the innermost cause: ``[CLASS] message`` where Spark has a class, else type and message."""
    origin = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    if origin is not None:
        try:
            cause = _innermost(origin)
            return _line(str(cause.getClass().getSimpleName()), str(cause.getMessage() or ""))
        except (Py4JError, OSError):
            pass  # the JVM is gone meanwhile
    return _line(type(error).__name__, str(error))


def _innermost(throwable: Any) -> Any:
    for _ in range(MAX_CAUSES):
        cause = throwable.getCause()
        if cause is None:
            break
        throwable = cause
    return throwable


def _line(kind: str, message: str) -> str:
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    if first.startswith("["):
        return first
    return f"{kind}: {first}" if first else kind
