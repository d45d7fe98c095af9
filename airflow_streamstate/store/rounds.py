"""Many requests side by side, and again for those that outlast their tries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from airflow_streamstate.errors import OutcomeUnknownError, UnavailableError

Result = TypeVar("Result")

THREADS = 16


def side_by_side(acts: Sequence[Callable[[], Result]], threads: int = THREADS) -> list[Result]:
    """Do them all, some at a time; their results in order. After a failure none is begun, and all that were are over.

    Raises:
        Exception: the first failure.
    """
    if len(acts) < 2:
        return [act() for act in acts]
    failures: list[BaseException] = []

    def unless_failed(act: Callable[[], Result]) -> Result:
        if failures:  # the pool goes on until somebody tells it
            raise CancelledError
        try:
            return act()
        except BaseException as failure:
            failures.append(failure)
            raise

    with ThreadPoolExecutor(min(threads, len(acts)), thread_name_prefix="streamstate-store") as pool:
        futures: list[Future[Result]] = [pool.submit(unless_failed, act) for act in acts]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    if failures:
        raise failures[0]
    return [future.result() for future in futures]


def in_rounds(acts: Sequence[Callable[[], Result]]) -> list[Result]:
    """As ``side_by_side`` for acts that may be done twice. Among thousands some outlast their tries: these come again,
    until a round gets none of them done.

    Raises:
        UnavailableError, OutcomeUnknownError: of the last round.
        Exception: the first failure of another kind.
    """
    done: dict[int, Result] = {}

    def act(number: int) -> None:
        done[number] = acts[number]()

    while True:
        left = [number for number in range(len(acts)) if number not in done]
        try:
            side_by_side([partial(act, number) for number in left])
        except (UnavailableError, OutcomeUnknownError):
            if all(number not in done for number in left):
                raise
        else:
            return [done[number] for number in range(len(acts))]
