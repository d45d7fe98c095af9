"""The watch of a home for alerts: looks at every stream, records what an audience is told, and tells it.

What is told is recorded first, by compare-and-swap, and only the process whose write landed tells it. So any number of
processes may watch a home, and a restarted one repeats nothing; what the process that wrote last had not told when it
was ended is not told again, and stands in the register.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_streamstate.alerts.conditions import Sight
from airflow_streamstate.alerts.evaluation import AlertChange, Evaluation, evaluate
from airflow_streamstate.control.alerts import AlertBook
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.controller.upgrade.views import UpgradeView
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    HomeAwayError,
    InvalidRequestError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamNotFoundError,
    StreamStateError,
)
from airflow_streamstate.protocol.alerts import Alert, AlertRegister, AlertRules, Told
from airflow_streamstate.protocol.downtimes import Downtime
from airflow_streamstate.protocol.ids import upgrade_of_return
from airflow_streamstate.protocol.redaction import shortened

HOME_AWAY_SECONDS = 60.0
"""A home that has not answered for so long is alerted about."""
TRIES = 5
Tell = Callable[[AlertChange], None]


@dataclass
class Watched:
    """What was last seen of a stream.

    Attributes:
        told: what this process knows to be told; what is recorded counts before it.
        unsure: what was written without an answer, and is told once it is known to be recorded.
        downtimes: of the last upgrade that ended while this process watched.
    """

    sight: Sight
    looked_at: datetime
    told: Told = field(default_factory=Told)
    unsure: Evaluation | None = None
    downtimes: tuple[Downtime, ...] = ()


class AlertWatch:
    """The alerts of one home for one audience.

    Args:
        controller: of the home; this watch alone uses it.
        audience: who is told: each audience is told every alert once, however many processes tell it.
        tell: gets each change.
        remembers: the process looks again and again, so that what only growth is measured by is not recorded.
    """

    def __init__(self, controller: Controller, audience: str, tell: Tell, *, remembers: bool = True) -> None:
        self._controller = controller
        self._clock = controller.clock
        self._audience = audience
        self._tell = tell
        self._remembers = remembers
        self._away_since: float | None = None
        self._away: Alert | None = None
        self.streams: dict[str, Watched] = {}

    def look(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Look at every stream of the home, until ``is_over``.

        Raises:
            StreamStateError: the home does not answer. Looking again is right: after a minute that is an alert.
        """
        try:
            names = self._controller.home.stream_ids()
            for name in sorted(set(self.streams) - set(names)):
                del self.streams[name]
            for name in names:
                if is_over():
                    return
                self.look_at(name)
        except StreamStateError as error:
            self._is_away(error)
            raise
        self._is_back()

    def look_at(self, stream_id: str) -> None:
        """Look at one stream. Raises as ``look``."""
        try:
            seen, status = self._controller.observed(stream_id)
        except StreamNotFoundError:
            self.streams.pop(stream_id, None)
            return
        known = self.streams.get(stream_id)
        watched = Watched(Sight(status, seen, {}), self._clock.now())
        if known is not None:
            watched.told, watched.unsure, watched.downtimes = known.told, known.unsure, known.downtimes
        self.streams[stream_id] = watched
        self._evaluate(stream_id, watched, seen, status)

    def _evaluate(self, stream_id: str, watched: Watched, seen: Observation | None, status: StreamStatus) -> None:
        book = AlertBook(self._controller.home.control(stream_id), self._controller.requested_by)
        for _ in range(TRIES):
            stored, rules, problem = _read(book)
            told = self._told(stored, watched)
            if watched.unsure is not None and _is_recorded(watched.unsure, told):
                self._tell_all(watched.unsure)
            watched.unsure = None
            watched.sight = Sight(status, seen, self._failed_upgrade(watched, seen, status, told))
            found = evaluate(rules, watched.sight, told, self._clock.now(), self._clock.new_uuid)
            if problem or not self._is_news(told, found):
                watched.told = found.told
                self._tell_all(found)
                return
            try:
                book.record(stored, self._audience, found.told)
            except ConflictError:
                continue
            except OutcomeUnknownError:
                watched.unsure = found
                raise
            except (StoreRefusedError, HomeAwayError):
                if not self._controller.home.is_there():
                    raise
                # No right to write: this process alone remembers what it has told.
            watched.told = found.told
            self._tell_all(found)
            return

    def _told(self, stored: Stored[AlertRegister] | None, watched: Watched) -> Told:
        """What was told, by the register; growth is measured by what this process remembers, too."""
        recorded = None if stored is None else stored.value.audiences.get(self._audience)
        if recorded is None:
            return watched.told
        if not self._remembers or recorded.deployment_id != watched.told.deployment_id:
            return recorded
        return replace(recorded, lag_samples=watched.told.lag_samples, state_samples=watched.told.state_samples)

    def _is_news(self, told: Told, found: Evaluation) -> bool:
        if found.changes or not self._remembers:
            return found.told != told
        return replace(told, lag_samples={}, state_samples={}) != replace(found.told, lag_samples={}, state_samples={})

    def _tell_all(self, found: Evaluation) -> None:
        for change in found.changes:
            self._tell(change)

    def _failed_upgrade(
        self, watched: Watched, seen: Observation | None, status: StreamStatus, told: Told
    ) -> Mapping[str, str]:
        """The last upgrade of the stream that did not end as asked, and why; nothing once the stream went on since."""
        if seen is None or status.upgrade:
            return {}
        is_same = told.deployment_id == seen.deployment_id
        known = told.failed_upgrade_id if is_same else ""
        for upgrade_id in (told.upgrade_id or known, upgrade_of_return(seen.spec.request_id) or ""):
            if not upgrade_id:
                continue
            try:
                view = self._controller.upgrades.view(seen.stream_id, upgrade_id)
            except (InvalidRequestError, DataError):
                continue
            watched.downtimes, text = view.downtimes, _why_failed(view)
            return {upgrade_id: text} if text else {}
        return {}

    def _is_away(self, error: StreamStateError) -> None:
        now = self._clock.monotonic_seconds()
        if self._away_since is None:
            self._away_since = now
        if self._away is None and now - self._away_since >= HOME_AWAY_SECONDS:
            text = shortened(f"the home does not answer: {error}", (), 500, in_a_line=True)
            self._away = Alert(self._clock.new_uuid(), "home_unreachable", "", self._clock.now(), text)
            self._tell(AlertChange("raised", "", "", self._away, self._clock.now()))

    def _is_back(self) -> None:
        self._away_since = None
        if self._away is not None:
            gone, self._away = self._away, None
            self._tell(AlertChange("resolved", "", "", gone, self._clock.now()))

    @property
    def is_away(self) -> bool:
        """Whether the home did not answer at the last look."""
        return self._away_since is not None


def _read(book: AlertBook) -> tuple[Stored[AlertRegister] | None, AlertRules, str]:
    """The register, its rules, and what is wrong with it; "" for nothing: a damaged one is left as it is."""
    try:
        stored = book.read()
    except DataError as error:
        return None, AlertRules(), error.message
    return stored, AlertRules() if stored is None else stored.value.rules, ""


def _is_recorded(found: Evaluation, told: Told) -> bool:
    """Whether a write without an answer has landed: the ids of its alerts are its own."""
    return found.told.standing == told.standing


def _why_failed(view: UpgradeView) -> str:
    """Why an upgrade did not end as asked; "" where it did, is under way, or was cancelled by a person."""
    error = view.as_error()
    if error is None or view.is_cancelled:
        return ""
    text = view.state.last.text
    return f"{view.upgrade_id}: {error.message}{f': {text}' if text else ''}"
