"""Functions that a script registers for its end."""

from __future__ import annotations

from types import FunctionType

from airflow_streamstate.driver.attempt.callbacks import Callbacks, JobEnd


def close(end: JobEnd) -> None:
    del end


def test_each_function_has_a_name_of_its_own() -> None:
    """Events distinguish them, so the driver does not take one for another."""
    callbacks = Callbacks()
    callbacks.add("drain", close, 1.0)
    callbacks.add("drain", close, 1.0)
    callbacks.add("drain", print, 1.0)
    callbacks.add("stop", close, 1.0)
    assert [callback.name for callback in callbacks.named["drain"]] == ["close", "close#2", "print"]
    assert [callback.name for callback in callbacks.named["stop"]] == ["close"]


def test_a_script_that_is_run_again_says_everything_again() -> None:
    """A second run of the script, as behind a standby, calls no function of the first run."""
    callbacks, own = Callbacks(), FunctionType(close.__code__, {"__name__": "__main__"}, "own")
    callbacks.add("drain", own, 1.0)
    callbacks.add("drain", close, 1.0)  # of a module that stays imported, and is not run again
    assert not callbacks.is_supervised
    callbacks.begin()
    assert [callback.function for callback in callbacks.named["drain"]] == [close]
    assert callbacks.is_supervised
