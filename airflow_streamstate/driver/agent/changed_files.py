"""Files that the script read before its queries started, and that have other content by now: the next start reads them.

Looked at in a thread of its own, since a share that does not answer must not hold up the heartbeat.
"""

from __future__ import annotations

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.protocol.script_reads import MOST_TOLD, changed_words


class ChangedFiles:
    """The changed files of an attempt, as of the last look."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._began_at = attempt.clock.now()
        self._is_looking = False
        self._told: tuple[str, ...] = ()

    def told(self) -> tuple[str, ...]:
        """A sentence for each; begins the next look. Raises nothing."""
        if self._attempt.opened.has_begun and not self._is_looking:
            self._is_looking = True
            self._attempt.in_background(self._look)
        return self._told

    def _look(self) -> None:
        attempt = self._attempt
        try:
            found, now = attempt.opened.changed_files(), attempt.clock.now()
            since = f"attempt {attempt.number}"
            texts = [changed_words(file, since, self._began_at, now) for file in found[:MOST_TOLD]]
            self._told = tuple(attempt.reporter.redacted(f"{text}; the next start reads it") for text in texts)
        finally:
            self._is_looking = False
