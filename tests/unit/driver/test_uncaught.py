"""What Python prints of uncaught errors. As scripts see it: ``test_script.py``."""

from __future__ import annotations

import sys
import threading

import pytest

from airflow_streamstate.driver.main import hide_in_uncaught


@pytest.fixture
def _hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own hooks, and what was there put back afterwards."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)


@pytest.mark.usefixtures("_hooks")
def test_each_secret_that_becomes_known_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the first lines of a driver, and those that its record adds."""
    hide_in_uncaught(lambda text: text.replace("hunter2", "***"))
    hide_in_uncaught(lambda text: text.replace("hunter2", "***").replace("hunter3", "***"))
    error = ValueError("with hunter2 and hunter3")
    sys.excepthook(ValueError, error, None)
    assert capsys.readouterr().err == "ValueError: with *** and ***\n"
    sys.excepthook(ValueError, ValueError("with hunter2"), None)
    assert capsys.readouterr().err == "ValueError: with ***\n"


@pytest.mark.usefixtures("_hooks")
def test_a_thread_that_exits_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """As in Python."""
    hide_in_uncaught(lambda text: text.replace("hunter2", "***"))
    threading.excepthook(threading.ExceptHookArgs((SystemExit, SystemExit("hunter2"), None, None)))
    assert capsys.readouterr().err == ""
    threading.excepthook(threading.ExceptHookArgs((ValueError, ValueError("hunter2"), None, None)))
    assert capsys.readouterr().err == f"Exception in thread {threading.get_ident()}:\nValueError: ***\n"
