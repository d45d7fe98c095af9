"""The periods in which no query of a stream ran, by the events and heartbeats of its attempts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Claimed,
    Drained,
    Draining,
    Finished,
    Ignored,
    QueryStarted,
)
from airflow_streamstate.protocol.heartbeat import Heartbeat
from airflow_streamstate.protocol.views import View


@dataclass(frozen=True)
class NotRunning(View):
    """A period in which no query of the stream ran.

    Attributes:
        after, before: the attempts around it that ran a query, or a flush: ``d-0001 attempt 1 (drained)`` with its
            end, and ``d-0002 attempt 1``; ``before`` is "" while the period lasts.
        from_at: the end of the last query of ``after``; where unknown, its terminal event or its last sign of life.
        until_at: the first query of ``before``, or its flush; None while the period lasts.
        at_most: ``after`` has no terminal event, so it may have run longer.
        between_runs: ``after`` ended by itself, as the triggers of all its queries say: nothing was to run.
    """

    form: ClassVar[str] = "* seconds"

    after: str
    before: str
    from_at: datetime
    until_at: datetime | None
    at_most: bool = False
    between_runs: bool = False

    @property
    def seconds(self) -> float | None:
        """How long it lasted; None while it lasts."""
        return None if self.until_at is None else round((self.until_at - self.from_at).total_seconds(), 3)


def not_running(events: Sequence[Event], signs: Mapping[str, Heartbeat]) -> list[NotRunning]:
    """The periods between the last query of one attempt and the first query of the next, oldest first.

    An attempt that neither started nor flushed a query is no border of such a period.

    Args:
        events: of all deployments of a stream.
        signs: the last heartbeat of each deployment; that of an earlier attempt is in the ``Claimed`` of the next one.
    """
    beats = last_beats(events, signs)
    attempts: dict[tuple[str, int], list[Event]] = {}
    for event in sorted(events, key=lambda event: event.at):
        attempts.setdefault((event.deployment_id, event.attempt), []).append(event)
    found = []
    after: list[Event] = []
    for said in attempts.values():
        first = next((event for event in said if isinstance(event, QueryStarted | Draining)), None)
        if first is not None and after:
            ended_at = _last_at(after, beats)
            if ended_at < first.at:
                found.append(
                    NotRunning(
                        _with_end(after),
                        _named(said),
                        ended_at,
                        first.at,
                        not _has_ended(after),
                        between_runs=has_run_to_its_end(after),
                    )
                )
        flushed = any(isinstance(event, Drained) for event in said)
        if first is not None or flushed or (not after and _has_ended(said)):
            after = said
    if after and _has_ended(after):
        ended_at = _last_at(after, beats)
        found.append(NotRunning(_with_end(after), "", ended_at, None, between_runs=has_run_to_its_end(after)))
    return found


def has_run_to_its_end(said: Sequence[Event], query_name: str | None = None) -> bool:
    """Whether an attempt ended by itself, and its queries, or this one, have a trigger that ends each run.

    Args:
        said: the events of the attempt, oldest first.
    """
    end = next((event for event in reversed(said) if isinstance(event, TERMINAL_EVENTS)), None)
    starts = {event.query_name: event for event in said if isinstance(event, QueryStarted)}
    asked = [start for name, start in starts.items() if query_name in (None, name)]
    if not isinstance(end, Finished) or any(query_name in (None, name) for name in end.unfinished):
        return False
    return bool(asked) and all(start.ends_by_itself for start in asked)


def last_beats(events: Sequence[Event], signs: Mapping[str, Heartbeat]) -> Mapping[tuple[str, int], datetime]:
    """The last heartbeat of each attempt, by deployment and number, as far as known: the next attempt overwrites it."""
    told = {(beat.deployment_id, beat.attempt): beat.at for beat in signs.values()}
    for event in events:
        if isinstance(event, Claimed) and event.earlier_attempt is not None and event.earlier_beat_at is not None:
            told.setdefault((event.deployment_id, event.earlier_attempt), event.earlier_beat_at)
    return told


def _last_at(said: Sequence[Event], beats: Mapping[tuple[str, int], datetime]) -> datetime:
    """When the last query of an attempt ended, as far as known.

    Events behind the terminal one (copies at a mirror, late orders) are not of a query.
    """
    last_word = next((event for event in said if isinstance(event, TERMINAL_EVENTS)), None)
    if last_word is None:
        return last_sign(said, beats)
    ends = getattr(last_word, "ends", {}).values()
    seen = [end.last_at for end in ends if end.last_at is not None]
    return max(seen) if seen else last_word.at


def last_sign(said: Sequence[Event], beats: Mapping[tuple[str, int], datetime]) -> datetime:
    """The last sign of life of an attempt without a last word, by its events, oldest first, and ``last_beats``.

    A deploy may write ``Ignored`` for a dead attempt long after its end.
    """
    last = next((event for event in reversed(said) if not isinstance(event, Ignored)), said[-1])
    return max(last.at, beats.get((last.deployment_id, last.attempt), last.at))


def _has_ended(said: Sequence[Event]) -> bool:
    return any(isinstance(event, TERMINAL_EVENTS) for event in said)


def _named(said: Sequence[Event]) -> str:
    return f"{said[-1].deployment_id} attempt {said[-1].attempt}"


def _with_end(said: Sequence[Event]) -> str:
    end = next((event.kind.lower() for event in reversed(said) if isinstance(event, TERMINAL_EVENTS)), "no last word")
    return f"{_named(said)} ({end})"
