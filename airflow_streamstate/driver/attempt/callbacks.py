"""Functions of the script that the driver calls at the job's end: after the last commit, before the terminal event.

Samza calls ``handleDrain`` of each operator when all its inputs are drained; here one function acts for the whole job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_streamstate.protocol.events import Occasion
from airflow_streamstate.protocol.positions import QueryPosition


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
        is_supervised: the script runs under a supervisor already, so ``attach`` has nothing to do.
    """

    named: dict[Occasion, list[Callback]] = field(default_factory=lambda: {"drain": [], "stop": []})
    is_supervised: bool = False

    def add(self, occasion: Occasion, function: JobFunction, within_seconds: float) -> None:
        known = self.named[occasion]
        name = str(getattr(function, "__qualname__", type(function).__name__))
        same = sum(callback.name.partition("#")[0] == name for callback in known)
        known.append(Callback(f"{name}#{same + 1}" if same else name, function, within_seconds))

    def begin(self) -> None:
        """A supervisor begins to run the script, perhaps again."""
        self.is_supervised = True
        for callbacks in self.named.values():
            # Imported modules are not run again, so their functions stay registered.
            callbacks[:] = [each for each in callbacks if getattr(each.function, "__module__", "") != "__main__"]


OF_THIS_PROCESS = Callbacks()
"""A process runs one script."""
