"""Functions of the script that are called at its end: after the last commit, before that end is told.

Samza calls an operator's ``handleDrain`` when all its inputs have drained; here one function speaks for the whole job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_streamstate.protocol.events import Occasion
from airflow_streamstate.protocol.positions import QueryPosition


@dataclass(frozen=True)
class JobEnd:
    """What such a function is given.

    Attributes:
        occasion: ``drain`` or ``stop``.
        stream_id, deployment_id: whose end it is.
        snapshot_id: the snapshot at this end; it is complete.
        queries: where each query ended: its last batch, and the offsets of its sources.
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
        name: as events name it; no other of its occasion has it.
        within_seconds: how long it may take.
    """

    name: str
    function: JobFunction
    within_seconds: float


@dataclass
class Callbacks:
    """What a script has said for itself.

    Attributes:
        named: its functions, by occasion, in the order in which they are called.
        is_supervised: whether it runs under a supervisor already, so that it has nothing to attach to.
    """

    named: dict[Occasion, list[Callback]] = field(default_factory=lambda: {"drain": [], "stop": []})
    is_supervised: bool = False

    def add(self, occasion: Occasion, function: JobFunction, within_seconds: float) -> None:
        """Name one more."""
        known = self.named[occasion]
        name = str(getattr(function, "__qualname__", type(function).__name__))
        same = sum(callback.name.partition("#")[0] == name for callback in known)
        known.append(Callback(f"{name}#{same + 1}" if same else name, function, within_seconds))

    def begin(self) -> None:
        """A script is run, or run anew, under a supervisor."""
        self.is_supervised = True
        for callbacks in self.named.values():
            # Modules that the script imports stay as they are, and do not name theirs a second time.
            callbacks[:] = [each for each in callbacks if getattr(each.function, "__module__", "") != "__main__"]


OF_THIS_PROCESS = Callbacks()
"""A process runs one script."""
