"""Warms the JVM and the connectors for a takeover by asking and compiling what a start will; it asks again (Law 14).

A part that fails or takes too long is logged, and is cold at the takeover.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.reports import MAX_REASON_CHARACTERS
from airflow_streamstate.driver.rehearsal.committed_batches import RanAgain, run_batches_again
from airflow_streamstate.driver.start.recorded_plans import plan_of
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.scratch import ScratchRun

WARM_BATCHES = 5
WARM_BATCHES_SECONDS = 15.0
"""Longest time for all of them."""
WARM_SECONDS = 60.0
"""Longest wait for one query."""
PAUSE_SECONDS = 0.05
NO_QUERY_ID = "00000000-0000-0000-0000-000000000000"
"""For a query that has no id yet."""


def warm(attempt: Attempt, name: str, startable: StartableQuery, within_seconds: float = WARM_SECONDS) -> None:
    """Ask and compile what a start of this query will; raises nothing.

    Returns when that is done; after ``within_seconds`` it continues in the background. Writes under the rehearsal's
    own keys only.
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
        cold.append(f"it was not done in {took}, and continues in the background")
    for words in cold:
        words = attempt.reporter.shortened(words, MAX_REASON_CHARACTERS, in_a_line=True)
        attempt.reporter.say(f"query {name} could not be warmed in full: {words}")
    if not cold:
        attempt.reporter.say(f"query {name} is warm: its sink and its plan were asked in {took}")


def warm_with_rows(attempt: Attempt, name: str, startable: StartableQuery, run: ScratchRun) -> None:
    """Run the newest batch of the rehearsal again and again, into nothing, until the JVM has compiled what it runs
    often; raises nothing.

    A JVM that has run a query once or twice takes two to three times as long for a batch as one that has run it often.
    """
    rehearsal = run.rehearsal
    if not rehearsal.batches:
        return
    clock = attempt.clock
    one = replace(run, what=replace(rehearsal, terms=replace(rehearsal.terms, rehearse_batches=1)))
    until = clock.monotonic_seconds() + WARM_BATCHES_SECONDS
    runs = 0
    start = attempt.spec.start
    for is_drained in (start.mode == "seed" or start.rewrite is not None, True):
        try:
            while runs < WARM_BATCHES and (left := until - clock.monotonic_seconds()) > 0:
                ran = RanAgain()
                run_batches_again(attempt, name, startable, one, left, ran, is_drained=is_drained)
                if not ran.batch_ids:
                    attempt.reporter.say(f"query {name} is not warmed by a batch: {'; '.join(ran.notes)}")
                    return
                runs += 1
            break
        except Exception as error:  # the rehearsal has reported what fails
            attempt.reporter.say(f"query {name} is not warmed by a batch: {type(error).__name__}")
    attempt.reporter.say(f"query {name}: its newest batch ran {runs} times, into nothing")


def ask_again(attempt: Attempt, name: str, startable: StartableQuery) -> None:
    """Ask the sink again which batches it holds, in the background, to keep its connector's caches fresh."""

    def work() -> None:
        with suppress(Exception):  # the start asks again, and reports errors
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
        return NO_QUERY_ID  # the sink can be asked without the home
    known = None if manifest is None else manifest.queries.get(name)
    return NO_QUERY_ID if known is None else known.query_id or NO_QUERY_ID


def _warm_plan(attempt: Attempt, name: str, startable: StartableQuery) -> tuple[str, ...]:
    """Read the plan, which asks the settings and the sources, too."""
    try:
        plan_of(attempt, name, startable)
    finally:
        attempt.sources.close(name)
    return ()
