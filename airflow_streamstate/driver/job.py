"""What a script may say for itself. Nothing of it is needed: a script that says nothing runs as well."""

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
    """Have a function called once at the end of a drain: after the last flush is committed, before it is told.

    For state of the job's own: an index that is to be closed, a file that says it is done. It is called in a thread of
    its own, with a ``JobEnd``; what it raises keeps the deployment out of ``drained``, and the next drain calls it
    again. Works as a decorator, too::

        @on_drain
        def close_index(end):
            index.close(up_to=end.queries["counts"].batch_id)

    Args:
        function: it.
        within_seconds: how long it may take; that of the flush's deadline that is left, if this is less.

    Returns:
        The function.

    Raises:
        InvalidRequestError: that is no function, or no time.
    """
    return _named("drain", function, within_seconds)


def on_stop(
    function: Function | None = None, *, within_seconds: float = DEFAULT_WITHIN_SECONDS
) -> Function | Callable[[Function], Function]:
    """The same for a stop: called when the snapshot is complete, before ``Stopped``. What it raises is an event; the
    stop is complete all the same, since the state is safe. Arguments and errors as for ``on_drain``."""
    return _named("stop", function, within_seconds)


def _named(
    occasion: str, function: Function | None, within_seconds: float
) -> Function | Callable[[Function], Function]:
    if not isinstance(within_seconds, int | float) or not 0 < within_seconds <= MAX_WITHIN_SECONDS:
        raise InvalidRequestError(
            "this is no time that a function may take",
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
