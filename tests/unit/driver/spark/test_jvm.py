from __future__ import annotations

import pytest

from airflow_streamstate.driver.spark.jvm import is_stopped_by_script, jvm_answers, jvm_is_gone, note_stop_of
from airflow_streamstate.errors import UnavailableError

py4j_protocol = pytest.importorskip("py4j.protocol")


@pytest.mark.parametrize(
    "error",
    [
        py4j_protocol.Py4JNetworkError("Error while sending"),
        py4j_protocol.Py4JError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_a_jvm_that_does_not_answer_is_unavailable(error: Exception) -> None:
    """It shows nothing about a query."""
    assert jvm_is_gone(error)
    with pytest.raises(UnavailableError, match="does not answer"), jvm_answers():
        raise error


def test_what_py4j_says_is_not_cut() -> None:
    """Secrets are hidden later, and a cut one would not be recognised."""
    with pytest.raises(UnavailableError) as raised, jvm_answers():
        raise py4j_protocol.Py4JNetworkError("x" * 195 + "hunter2-secret")
    assert str(raised.value.context["reason"]).endswith("xhunter2-secret")


@pytest.mark.parametrize("error", [py4j_protocol.Py4JError("Method x does not exist"), ValueError("no")])
def test_what_the_jvm_answered_passes_through(error: Exception) -> None:
    """An error of Spark's own reaches the script as it is."""
    assert not jvm_is_gone(error)
    with pytest.raises(type(error)), jvm_answers():
        raise error


def test_a_context_that_the_script_stopped_is_known_by_itself() -> None:
    """Not by its place in memory, which a later context may get."""

    class Context:
        pass

    stopped = Context()
    note_stop_of(stopped)
    assert is_stopped_by_script(stopped)
    del stopped
    later = [Context() for _ in range(100)]
    assert not any(is_stopped_by_script(context) for context in later)
    assert not is_stopped_by_script(None)
