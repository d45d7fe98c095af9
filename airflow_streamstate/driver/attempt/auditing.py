"""Audits for what no lock can prevent; the driver notes each finding once.

A commit log that skips a batch: its rows were read and never written (Law 12). A predecessor that was taken for dead
and went on: its last batches are in the sink twice (1a.8). Batches that advanced offsets and read no row: the sink may
have skipped them (Law 14).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_streamstate.checkpoint.log import batches_passed_over, listed_batches
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.data_events import BatchesSkipped
from airflow_streamstate.protocol.events import Noted
from airflow_streamstate.snapshot.outrun import OUTRUN, batches_after

GAP = "the commit log of this query passes over batches: their rows may be lost; compare the sink with the source"


class Audit:
    """The audits of one attempt while its queries run."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._suspected: dict[str, set[int]] = {}
        self._looks = 0

    def follow(self, query_name: str, commit_ids: Sequence[int]) -> None:
        """Check the commits that a heartbeat has just listed.

        A batch counts as missing after two looks: a listing may show a file and not the one before it, and Spark may be
        removing the oldest one.
        """
        passed_over = set(batches_passed_over(commit_ids))
        certain = passed_over & self._suspected.get(query_name, set())
        self._suspected[query_name] = passed_over
        if certain:
            note_once(self._attempt, GAP, query=query_name, batches=listed_batches(certain))

    def look_back(self) -> None:
        """Check the predecessor at the 1st, 2nd, 4th, 8th … call."""
        self._looks += 1
        if self._looks & (self._looks - 1) == 0:
            look_back(self._attempt)


def audit_at_end(attempt: Attempt) -> None:
    """Check once more before the terminal event, when no query runs any more."""
    note_gaps(attempt, sorted(attempt.queries.names()))
    look_back(attempt)
    for query in attempt.queries.all():
        tell_skipped(attempt, query, at_end=True)


def tell_skipped(attempt: Attempt, query: LogicalQuery, *, at_end: bool = False) -> int:
    """Write ``BatchesSkipped`` at the first such batch, whenever their number has doubled, and at the end.

    Returns the number of such batches in this attempt.
    """
    try:
        skipped = query.skipped()
    except StreamStateError:
        return 0
    told = max(
        (
            event.count
            for event in attempt.reporter.events
            if isinstance(event, BatchesSkipped) and (event.attempt, event.query_name) == (attempt.number, query.name)
        ),
        default=0,
    )
    if skipped.count > told and (at_end or skipped.count >= 2 * told):
        attempt.reporter.say(
            f"query {query.name}: batches {listed_batches(skipped.newest)} advanced their offsets and read no row: a"
            " sink that already holds these batch ids skips them in this way, and so does a filter that leaves nothing"
            " for Delta; compare the sink with the source"
        )
        attempt.reporter.write_soon(
            BatchesSkipped, query_name=query.name, batch_ids=skipped.newest, count=skipped.count
        )
    return skipped.count


def note_gaps(attempt: Attempt, query_names: Sequence[str]) -> None:
    """Check the logs of queries that are not running."""
    for name in query_names:
        with suppress(StreamStateError):  # the part that needs the log reports it
            passed_over = batches_passed_over(attempt.checkpoint_of(name).commit_ids())
            if passed_over:
                note_once(attempt, GAP, query=name, batches=listed_batches(passed_over))


def look_back(attempt: Attempt) -> None:
    """Check whether the previous deployment committed batches after its end was taken."""
    with suppress(StreamStateError):
        manifest = attempt.start.manifest()
        if manifest is None or attempt.spec.start.undoes is not None:
            return  # a rollback to an older snapshot expects later batches
        for name, later in batches_after(attempt.checkpoints, manifest).items():
            note_once(attempt, OUTRUN, deployment_id=manifest.deployment_id, query=name, batches=listed_batches(later))


def note_once(attempt: Attempt, text: str, **facts: str) -> None:
    """Write a note, unless this deployment has an equal one."""
    for event in attempt.reporter.events:
        if isinstance(event, Noted) and event.text == text and dict(event.facts) == facts:
            return
    attempt.reporter.note(text, **facts)
