"""What a start asks and compiles, done once while the old version still runs, so that the takeover finds it done.

Nothing is kept of the answers: a start asks all of it again (Law 14), and what is warm then is the JVM, with what Spark
and its connectors keep in it. A part that fails, or takes too long, is cold at the takeover and is told; nothing else
comes of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.reporting import MAX_REASON_CHARACTERS
from airflow_streamstate.driver.start.plans import plan_of
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol import layout

WARM_SECONDS = 60.0
"""So long one query is waited for at the most."""
PAUSE_SECONDS = 0.05
NO_QUERY_ID = "00000000-0000-0000-0000-000000000000"
"""For a query that has no id yet: its sink is read as for any other."""


def warm(attempt: Attempt, name: str, startable: StartableQuery, within_seconds: float = WARM_SECONDS) -> None:
    """Ask and compile what a start of this query will, and come back when that is done, or after ``within_seconds``.

    Reads the sink, the sources, the plan and the settings; writes below the keys of the attempt alone. Raises nothing.

    Args:
        attempt: of the rehearsal.
        name: the query.
        startable: the script's writer.
        within_seconds: what is not done by then goes on in the background.
    """
    clock, cold = attempt.clock, list[str]()
    begun, done = clock.monotonic_seconds(), threading.Event()

    def work() -> None:
        try:
            for what, act in (("sink", _warm_sink), ("plan", _warm_plan)):
                cold.extend(f"its {what}: {words}" for words in _guarded(act, attempt, name, startable))
        finally:
            done.set()

    attempt.in_background(work, gives_way=False)
    while not done.is_set() and clock.monotonic_seconds() - begun < within_seconds:
        clock.sleep(PAUSE_SECONDS)
    took = f"{clock.monotonic_seconds() - begun:.1f} s"
    if not done.is_set():
        cold.append(f"it was not done in {took}, and goes on beside")
    for words in cold:
        words = attempt.reporter.shortened(words, MAX_REASON_CHARACTERS, in_a_line=True)
        attempt.reporter.say(f"query {name} could not be warmed in full: {words}")
    if not cold:
        attempt.reporter.say(f"query {name} is warm: its sink and its plan were asked in {took}")


def ask_again(attempt: Attempt, name: str, startable: StartableQuery) -> None:
    """Ask the sink once more which batches it holds, in the background: what its connector keeps of it stays young, and
    little has changed by the takeover. Returns at once; the answer is of no use to anybody.

    Args:
        attempt: of the rehearsal.
        name: the query.
        startable: the script's writer.
    """

    def work() -> None:
        with suppress(Exception):  # the start asks, too, and says what stands in the way
            startable.held_batches(_query_id(attempt, name), 0)

    attempt.in_background(work)


def _guarded(
    act: Callable[[Attempt, str, StartableQuery], tuple[str, ...]],
    attempt: Attempt,
    name: str,
    startable: StartableQuery,
) -> tuple[str, ...]:
    try:
        return act(attempt, name, startable)
    except Exception as error:
        return (f"{type(error).__name__}: {error}",)


def _warm_sink(attempt: Attempt, name: str, startable: StartableQuery) -> tuple[str, ...]:
    return startable.warm_sink(
        _query_id(attempt, name),
        attempt.uri_of_key(layout.warming_folder(attempt.stream_id, attempt.deployment_id, name)),
    )


def _query_id(attempt: Attempt, name: str) -> str:
    try:
        manifest = attempt.start.manifest()
    except StreamStateError:
        return NO_QUERY_ID  # a home that does not answer just now keeps no sink from being asked
    known = None if manifest is None else manifest.queries.get(name)
    return NO_QUERY_ID if known is None else known.query_id or NO_QUERY_ID


def _warm_plan(attempt: Attempt, name: str, startable: StartableQuery) -> tuple[str, ...]:
    """With it go the settings, and what the sources say of themselves."""
    try:
        plan_of(attempt, name, startable)
    finally:
        attempt.sources.close(name)
    return ()
