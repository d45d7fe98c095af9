"""What a script may declare for itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate import driver
from airflow_streamstate.driver.attempt.callbacks import OF_THIS_PROCESS, JobEnd, on_drain, on_stop
from airflow_streamstate.errors import InvalidRequestError


@pytest.fixture(autouse=True)
def unsaid() -> Iterator[None]:
    """Nothing is declared before or after."""
    OF_THIS_PROCESS.named = {"drain": [], "stop": []}
    OF_THIS_PROCESS.is_supervised = True
    yield
    OF_THIS_PROCESS.named = {"drain": [], "stop": []}
    OF_THIS_PROCESS.is_supervised = False


def close(end: JobEnd) -> None:
    del end


def test_a_function_is_named_by_a_call_or_as_a_decorator() -> None:
    """And stays what it was."""
    assert on_drain(close) is close
    assert on_stop(close, within_seconds=5) is close
    decorated = on_drain(within_seconds=7.5)(close)
    assert decorated is close
    named = OF_THIS_PROCESS.named
    limits = {each: [(callback.name, callback.within_seconds) for callback in named[each]] for each in named}
    assert limits == {"drain": [("close", 60.0), ("close#2", 7.5)], "stop": [("close", 5)]}


@pytest.mark.parametrize("within_seconds", [0, -1, float("nan"), 1e9, "60"])
def test_a_time_that_is_none_is_refused(within_seconds: float) -> None:
    """One sentence, at the line of the call."""
    with pytest.raises(InvalidRequestError, match="time limit that is not allowed"):
        on_drain(close, within_seconds=within_seconds)


def test_what_cannot_be_called_is_refused() -> None:
    """Before the drain, not in it."""
    with pytest.raises(InvalidRequestError, match="cannot be called"):
        on_stop("close")  # type: ignore[type-var]


def test_a_script_imports_them_from_the_runtime() -> None:
    """By name; anything else is not there."""
    assert driver.on_drain is on_drain
    assert driver.JobEnd is JobEnd
    with pytest.raises(AttributeError, match="on_fire"):
        _ = driver.on_fire


def test_what_the_page_shows_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks, one after the other, in one script."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "in-the-job.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})  # noqa: S102 - the page's own words
    named = OF_THIS_PROCESS.named
    assert [callback.name for callback in (*named["drain"], *named["stop"])] == ["close_index", "say_where"]
    assert capsys.readouterr().err == ""  # supervised already: there is nothing to attach to
