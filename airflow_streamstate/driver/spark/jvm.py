"""What every part that talks to the JVM needs: private fields, Scala to Python, and a JVM that is gone.

One translation point: a JVM that does not answer is UnavailableError, whatever py4j calls it. Nothing about a query is
ever concluded from that: the watchdog ends a python whose JVM is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext

from airflow_streamstate.errors import UnavailableError

# What py4j says, besides its network error, when the other side closed the connection in the middle of an answer.
_GONE = ("Answer from Java side is empty", "An error occurred while trying to connect to the Java server")

_STOPPED_BY_SCRIPT = "_streamstate_stopped_by_script"
"""The attribute of a context that the script has stopped."""


def jvm_is_gone(error: BaseException) -> bool:
    """Whether this error says that the JVM did not answer, rather than what it answered."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    if isinstance(error, Py4JJavaError):
        return False
    return isinstance(error, Py4JError) and any(words in str(error) for words in _GONE)


@contextlib.contextmanager
def jvm_answers() -> Iterator[None]:
    """Translate a JVM that does not answer.

    Raises:
        UnavailableError: it did not. What the JVM itself raises passes through.
    """
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


@contextlib.contextmanager
def active_session(spark: Any) -> Iterator[None]:
    """Make a session the active one of the JVM's thread that serves this thread: a new thread has none, and what Spark
    does without naming a session would then be done in the default one."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
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
    """Whether the JVM is on its way out, or gone: what fails in it now failed of that."""
    jvm = SparkContext._jvm
    try:
        return jvm is None or bool(jvm.org.apache.spark.util.ShutdownHookManager.inShutdown())
    except (Py4JError, OSError):
        return True


def note_stop_of(context: SparkContext) -> None:
    """Note that the script stops this context, before it does: what ends by that has not failed."""
    setattr(context, _STOPPED_BY_SCRIPT, True)


def is_stopped_by_script(context: SparkContext | None) -> bool:
    """Whether the script has stopped this context, or is about to."""
    return getattr(context, _STOPPED_BY_SCRIPT, False)


def read_field(target: Any, name: str) -> Any:
    """The value of a private field of a Java object, found in its own class."""
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
    return {str(key): str(value) for key, value in jvm.scala.jdk.javaapi.CollectionConverters.asJava(mapping).items()}
