"""Calls the functions that the script registered for the job's end."""

from __future__ import annotations

import threading
import traceback

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.callbacks import Callback, JobEnd
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS
from airflow_streamstate.protocol.events import FunctionCalled, Occasion
from airflow_streamstate.protocol.manifest import SnapshotManifest

MAX_ERROR_CHARACTERS = 1_000


def call_functions(
    attempt: Attempt, occasion: Occasion, manifest: SnapshotManifest, *, within_seconds: float | None = None
) -> dict[str, str]:
    """Call the script's functions for this occasion, each once per end over all attempts; returns the errors by name.

    ``manifest`` is the snapshot at this end; ``within_seconds`` limits each call, beside its own limit.
    """
    positions = {name: query.position for name, query in manifest.queries.items()}
    end = JobEnd(occasion, attempt.stream_id, attempt.deployment_id, manifest.snapshot_id, positions)
    done = {
        event.name
        for event in attempt.reporter.events
        if isinstance(event, FunctionCalled)
        and not event.error
        and event.occasion == occasion
        # A deployment is drained once, whichever snapshot records it.
        and (occasion == "drain" or event.snapshot_id == manifest.snapshot_id)
    }
    failures: dict[str, str] = {}
    for callback in attempt.callbacks.named[occasion]:
        if callback.name in done:
            continue
        attempt.reporter.say(f"the driver calls {callback.name} for the job's {occasion}")
        limit = callback.within_seconds if within_seconds is None else min(callback.within_seconds, within_seconds)
        error = attempt.reporter.shortened(_called(attempt, callback, end, limit), MAX_ERROR_CHARACTERS)
        attempt.reporter.write(
            FunctionCalled, name=callback.name, occasion=occasion, snapshot_id=manifest.snapshot_id, error=error
        )
        if error:
            failures[callback.name] = error
    return failures


def _called(attempt: Attempt, callback: Callback, end: JobEnd, within_seconds: float) -> str:
    """Its error; "" where it succeeded."""
    found: list[str] = []
    is_over = threading.Event()

    def call() -> None:
        try:
            callback.function(end)
        except (Exception, SystemExit) as error:
            attempt.reporter.say(traceback.format_exc())
            found.append("".join(traceback.format_exception_only(error)).strip())
        finally:
            is_over.set()

    attempt.in_background(call, gives_way=False)
    until = attempt.clock.monotonic_seconds() + within_seconds
    while not is_over.is_set():
        attempt.fence.check()
        if attempt.clock.monotonic_seconds() >= until:
            return f"it did not return within {within_seconds:g} s"
        attempt.clock.sleep(POLL_SECONDS)
    return found[0] if found else ""
