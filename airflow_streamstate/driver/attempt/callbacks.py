"""Functions of the script that the driver calls at the job's end: after the last commit, before the terminal event.

Samza calls ``handleDrain`` of each operator when all its inputs are drained; here one function acts for the whole job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.events import Occasion
from airflow_streamstate.protocol.positions import QueryPosition

DEFAULT_WITHIN_SECONDS = 60.0
MAX_WITHIN_SECONDS = 86_400.0


@dataclass(frozen=True)
class JobEnd:
    """The argument of such a function.

    Attributes:
        snapshot_id: the complete snapshot at this end.
        queries: per query its last batch and the offsets of its sources.
    """

    occasion: Occasion
    stream_id: str
    deployment_id: str
    snapshot_id: str
    queries: Mapping[str, QueryPosition]


JobFunction = Callable[[JobEnd], object]
Function = TypeVar("Function", bound=JobFunction)


@dataclass(frozen=True)
class Callback:
    """A function of the script.

    Attributes:
        name: its name in events, unique per occasion.
    """

    name: str
    function: JobFunction
    within_seconds: float


@dataclass
class Callbacks:
    """What a script has registered.

    Attributes:
        named: its functions by occasion, in calling order.
        is_supervised: the script runs under an agent already, so ``attach`` has nothing to do.
    """

    named: dict[Occasion, list[Callback]] = field(default_factory=lambda: {"drain": [], "stop": []})
    is_supervised: bool = False

    def add(self, occasion: Occasion, function: JobFunction, within_seconds: float) -> None:
        known = self.named[occasion]
        name = str(getattr(function, "__qualname__", type(function).__name__))
        same = sum(callback.name.partition("#")[0] == name for callback in known)
        known.append(Callback(f"{name}#{same + 1}" if same else name, function, within_seconds))

    def begin(self) -> None:
        """An agent starts to run the script, perhaps again."""
        self.is_supervised = True
        for callbacks in self.named.values():
            # Imported modules are not run again, so their functions stay registered.
            callbacks[:] = [each for each in callbacks if getattr(each.function, "__module__", "") != "__main__"]


OF_THIS_PROCESS = Callbacks()
"""A process runs one script."""


def on_drain(
    function: Function | None = None, *, within_seconds: float = DEFAULT_WITHIN_SECONDS
) -> Function | Callable[[Function], Function]:
    """Register a function that runs once at the end of a drain: after the last flush is committed, before ``Drained``.

    It runs in its own thread and gets a ``JobEnd``. If it raises, the drain fails, and the next drain calls it
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
    if not isinstance(within_seconds, (int, float)) or not 0 < within_seconds <= MAX_WITHIN_SECONDS:
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
