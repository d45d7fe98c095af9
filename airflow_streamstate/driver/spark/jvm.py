"""Access to the JVM: private fields, Scala collections, and the errors of a JVM that does not answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext

from airflow_streamstate.errors import UnavailableError

# py4j's messages, besides its network error, when the connection was closed in the middle of an answer.
_GONE = ("Answer from Java side is empty", "An error occurred while trying to connect to the Java server")

_STOPPED_BY_SCRIPT = "_streamstate_stopped_by_script"
"""Set on a context that the script has stopped."""


def jvm_is_gone(error: BaseException) -> bool:
    """Whether this error means that the JVM did not answer."""
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return True
    if isinstance(error, Py4JJavaError):
        return False
    return isinstance(error, Py4JError) and any(words in str(error) for words in _GONE)


@contextlib.contextmanager
def jvm_answers() -> Iterator[None]:
    """Raise UnavailableError for a JVM that does not answer; other errors pass through."""
    try:
        yield
    except Exception as error:
        if not jvm_is_gone(error):
            raise
        raise UnavailableError(
            "Spark's JVM does not answer",
            reason=str(error),
            next_step="The driver is ending, or has lost its JVM; resume the deployment.",
        ) from None


def session_class(jvm: Any) -> Any:
    """The JVM's ``SparkSession``, which Spark 4 has in another package than 3.5."""
    found = jvm.org.apache.spark.sql.classic.SparkSession
    return jvm.org.apache.spark.sql.SparkSession if isinstance(found, JavaPackage) else found


def settings_of(spark: Any) -> dict[str, str]:
    """The settings of a session that are set; defaults are left out."""
    found = getattr(spark.conf, "getAll", None)  # not there before Spark 4
    return scala_text_map(spark._jvm, spark._jsparkSession.conf().getAll()) if found is None else dict(found)


@contextlib.contextmanager
def active_session(spark: Any) -> Iterator[None]:
    """Make a session the active one of the JVM thread that serves this Python thread; a new thread has none."""
    sessions = session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def jvm_is_ending() -> bool:
    """Whether the JVM is shutting down or gone."""
    jvm = SparkContext._jvm
    try:
        return jvm is None or bool(jvm.org.apache.spark.util.ShutdownHookManager.inShutdown())
    except (Py4JError, OSError):
        return True


def note_stop_of(context: SparkContext) -> None:
    """Note, before the script stops this context, that queries which end by that have not failed."""
    setattr(context, _STOPPED_BY_SCRIPT, True)


def is_stopped_by_script(context: SparkContext | None) -> bool:
    """Whether the script has stopped this context, or is stopping it."""
    return getattr(context, _STOPPED_BY_SCRIPT, False)


def read_field(target: Any, name: str) -> Any:
    """The value of a private field of a Java object's own class."""
    field = target.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(target)


def scala_option(option: Any) -> Any:
    """What a Scala ``Option`` holds; None where it holds nothing."""
    return option.get() if option.isDefined() else None


def scala_sequence(sequence: Any) -> list[Any]:
    """The elements of a Scala ``Seq``."""
    return [sequence.apply(index) for index in range(sequence.size())]


def scala_text_map(jvm: Any, mapping: Any) -> dict[str, str]:
    """A Scala map of texts."""
    converters = jvm.scala.jdk.javaapi.CollectionConverters
    if isinstance(converters, JavaPackage):  # Scala 2.12
        java_map = jvm.scala.collection.JavaConverters.mapAsJavaMapConverter(mapping).asJava()
    else:
        java_map = converters.asJava(mapping)
    # As one text: each key and value would be a separate call.
    found = json.loads(jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(java_map))
    return {str(key): str(value) for key, value in found.items()}


# Spark's own message in an error, in one line: that of the innermost cause, not the ``STREAM_FAILED`` around it.

MAX_CAUSES = 20


def spark_words(error: BaseException) -> str:
    """The first line of the innermost cause: ``[CLASS] message`` where Spark has a class, else type and message."""
    origin = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    if origin is not None:
        try:
            cause = _innermost(origin)
            return _line(str(cause.getClass().getSimpleName()), str(cause.getMessage() or ""))
        except (Py4JError, OSError):
            pass  # the JVM is gone by now
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
