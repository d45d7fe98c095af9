"""``on_drain`` and ``on_stop``: functions of a script that run at the end of a drain or a stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_streamstate.driver.attempt.callbacks import OF_THIS_PROCESS, JobEnd, JobFunction
from airflow_streamstate.errors import InvalidRequestError

Function = TypeVar("Function", bound=JobFunction)
DEFAULT_WITHIN_SECONDS = 60.0
MAX_WITHIN_SECONDS = 86_400.0

__all__ = ["JobEnd", "on_drain", "on_stop"]


def on_drain(
    function: Function | None = None, *, within_seconds: float = DEFAULT_WITHIN_SECONDS
) -> Function | Callable[[Function], Function]:
    """Register a function that runs once at the end of a drain: after the last flush is committed, before ``Drained``.

    It runs in a thread of its own and gets a ``JobEnd``. If it raises, the drain fails, and the next drain calls it
    again. Works as a decorator, too::

        @on_drain
        def close_index(end):
            index.close(up_to=end.queries["counts"].batch_id)

    Args:
        function: takes one argument; None where this is used as a decorator with options.
        within_seconds: how long it may take; at most what is left of the flush's deadline.

    Raises:
        InvalidRequestError: an argument is not a function, or not a number of seconds that is allowed.
    """
    return _named("drain", function, within_seconds)


def on_stop(
    function: Function | None = None, *, within_seconds: float = DEFAULT_WITHIN_SECONDS
) -> Function | Callable[[Function], Function]:
    """As ``on_drain`` for a stop: the function runs when the snapshot is complete, before ``Stopped``. If it raises,
    the stop still completes, and an event records the error."""
    return _named("stop", function, within_seconds)


def _named(
    occasion: str, function: Function | None, within_seconds: float
) -> Function | Callable[[Function], Function]:
    if not isinstance(within_seconds, int | float) or not 0 < within_seconds <= MAX_WITHIN_SECONDS:
        raise InvalidRequestError(
            f"on_{occasion} was given a time limit that is not allowed",
            within_seconds=within_seconds,
            next_step=f"Use seconds above 0, up to {MAX_WITHIN_SECONDS:g}.",
        )

    def name(given: Function) -> Function:
        if not callable(given):
            raise InvalidRequestError(
                f"on_{occasion} was given something that cannot be called",
                given=type(given).__name__,
                next_step="Give it a function that takes one argument.",
            )
        OF_THIS_PROCESS.add("drain" if occasion == "drain" else "stop", given, within_seconds)
        return given

    return name if function is None else name(function)
