"""Several actors over one store, in any interleaving of their calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_streamstate.store.base import Store
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash

TO_THE_END = 1_000_000
PATIENCE_SECONDS = 30.0


class _Gated(FaultPlan):
    """A plan whose actor waits for his turn before each call that others can distinguish from its neighbours.

    Links of files into an own folder are invisible to others, and would be most of all calls.
    """

    def __init__(self, wait: Callable[[], None], at: Mapping[int, Fault]) -> None:
        super().__init__(at)
        self._wait = wait

    def run(self, method: str, key: str, act: Any, **options: Any) -> Any:
        if method == "delete" or key.endswith((".json", "/")) or method == "list_folders":
            self._wait()
        return super().run(method, key, act, **options)


class Actor:
    """An actor with its own store and thread.

    Args:
        dies_at: the call at which he is killed; None for never.
    """

    def __init__(self, store: Store, act: Callable[[Store], object], dies_at: int | None = None) -> None:
        plan = _Gated(self._wait_for_turn, {} if dies_at is None else {dies_at: Fault.CRASH_BEFORE})
        self._store = FaultyStore(store, plan)
        self._act = act
        self._may_act = threading.Semaphore(0)
        self._has_acted = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.is_over = False
        self.result: object = None
        self.error: BaseException | None = None

    def _wait_for_turn(self) -> None:
        self._has_acted.release()
        assert self._may_act.acquire(timeout=PATIENCE_SECONDS), "this actor was not released"

    def _run(self) -> None:
        try:
            self.result = self._act(self._store)
        except SimulatedCrash:
            pass
        except BaseException as error:  # raised by the player
            self.error = error
        finally:
            self.is_over = True
            self._has_acted.release()

    def begin(self) -> None:
        """Go as far as the first call."""
        self._thread.start()
        self._wait()

    def go(self, calls: int) -> None:
        """Make ``calls`` calls, or all that are left."""
        for _ in range(calls):
            if self.is_over:
                return
            self._may_act.release()
            self._wait()

    def _wait(self) -> None:
        assert self._has_acted.acquire(timeout=PATIENCE_SECONDS), "this actor hangs"


def play(
    store: Store,
    acts: Sequence[Callable[[Store], object]],
    turns: Sequence[tuple[int, int]],
    dies_at: Mapping[int, int] | None = None,
) -> list[Actor]:
    """Let them all act, turn by turn, and then each to its end.

    Args:
        acts: what each does, given his own store.
        turns: whose turn it is (by number, wrapping round), and for how many calls.
        dies_at: which of them are killed, and at which call.
    """
    actors = [Actor(store, act, (dies_at or {}).get(number)) for number, act in enumerate(acts)]
    for actor in actors:
        actor.begin()
    for number, calls in turns:
        actors[number % len(actors)].go(calls)
    for actor in actors:
        actor.go(TO_THE_END)
    return actors
