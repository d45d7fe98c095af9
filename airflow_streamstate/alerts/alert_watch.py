"""The watch of a home for alerts: polls every stream, records what is reported, and reports it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_streamstate.alerts.conditions import NONE, AlertChange, Sight, deaths_since, evaluate, owed_change
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    HomeAwayError,
    InvalidRequestError,
    OutcomeUnknownError,
    StillReadingError,
    StoreRefusedError,
    StreamNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.ids import upgrade_of_return
from airflow_streamstate.protocol.policies import Alert, AlertRegister, AlertRules, Told
from airflow_streamstate.protocol.positions import Downtime
from airflow_streamstate.protocol.redaction import shortened
from airflow_streamstate.store.base import one_of_many

log = logging.getLogger(__name__)
HOME_AWAY_SECONDS = 60.0
"""A home that has not answered for this long is alerted about."""
WHOLE_SECONDS = 900.0
"""How often a stream without news is looked at as a whole, since an entry of the feed may be missing."""
TRIES = 5
Tell = Callable[[AlertChange], None]
Waiting = Callable[[], Collection[str]]


@dataclass
class Watched:
    """What was last seen of a stream.

    Attributes:
        told: what was reported, as far as this process knows; the record takes precedence.
        heard: the ids of the messages that this process has reported, and that the record still owes.
        refused_version: the version of the record that this process may not replace; None where it may.
        whole_until: the monotonic second from which the stream is looked at as a whole without news.
        downtimes: of the last upgrade that ended while this process watched.
    """

    sight: Sight
    looked_at: datetime
    rules: AlertRules = field(default_factory=AlertRules)
    told: Told = field(default_factory=Told)
    heard: set[str] = field(default_factory=set)
    refused_version: str | None = None
    whole_until: float = 0.0
    downtimes: tuple[Downtime, ...] = ()


class AlertWatch:
    """The alerts of one home for one audience.

    Args:
        controller: of the home; this watch alone uses it.
        audience: who is notified: each audience gets every alert once, however many processes report it.
        tell: gets each change.
        remembers: the process looks again and again, so that what only growth is measured by is not recorded.
        waiting: gives the ids of the messages that ``tell`` took, and that have not arrived.
    """

    def __init__(
        self,
        controller: Controller,
        audience: str,
        tell: Tell,
        *,
        remembers: bool = True,
        waiting: Waiting = lambda: (),
    ) -> None:
        self._controller = controller
        self._clock = controller.clock
        self._audience = audience
        self._tell = tell
        self._remembers = remembers
        self._waiting = waiting
        self._by = self._clock.new_uuid()
        self._feed = controller.home.feed_reader() if remembers else None
        self._news: set[str] = set()
        self._away_since: float | None = None
        self._back_since: float | None = None
        self._away: Alert | None = None
        self.streams: dict[str, Watched] = {}

    def look(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Look at every stream of the home, until ``is_over``.

        Raises:
            StreamStateError: the home does not answer. Looking again is right: after a minute that is an alert.
        """
        try:
            names = self._controller.home.stream_ids(self.streams)
            if self._feed is not None:
                self._news |= self._feed.news()
            for name in sorted(set(self.streams) - set(names)):
                del self.streams[name]
            for name in names:
                if is_over():
                    return
                self._look_at_due(name)
        except StreamStateError as error:
            self._is_away(error)
            raise
        self._is_back()

    def _look_at_due(self, stream_id: str) -> None:
        """Look at a stream, where it may have changed. Raises StreamStateError: the home does not answer."""
        try:
            self._look_of_many(stream_id)
        except (UnavailableError, ConflictError, OutcomeUnknownError) as error:
            self._controller.home.presence.need()
            log.warning("%s is looked at again in the next round: %s", stream_id, error)
            self._news.add(stream_id)  # a passing error, which is no fact about the stream
        except Exception as error:
            status = self._controller.unreadable(stream_id, error)
            try:
                self._look_at(stream_id, None, status)
            except Exception:  # the other streams are looked at
                self._controller.home.presence.need()
                log.exception("The alerts of %s cannot be evaluated", stream_id)

    def _look_of_many(self, stream_id: str) -> None:
        """Look for a short time. A single pass, which has no next poll, reads on at once."""
        while True:
            try:
                with one_of_many():
                    if not self._has_no_news(stream_id):
                        self.look_at(stream_id)
                    return
            except StillReadingError:
                if self._remembers:
                    raise

    def look_at(self, stream_id: str) -> None:
        """Look at one stream as a whole. Raises as ``look``."""
        try:
            seen, status = self._controller.observed(stream_id)
        except StreamNotFoundError:
            self.streams.pop(stream_id, None)
            self._news.discard(stream_id)
            return
        self._look_at(stream_id, seen, status)

    def _look_at(self, stream_id: str, seen: Observation | None, status: StreamStatus) -> None:
        watched = self.streams.setdefault(stream_id, Watched(Sight(status, seen, {}), self._clock.now()))
        watched.looked_at = self._clock.now()
        self._evaluate(stream_id, watched, seen, status)
        # Far apart, since a process that starts looks at all streams at once.
        watched.whole_until = self._clock.monotonic_seconds() + WHOLE_SECONDS * (0.5 + 0.5 * self._clock.jitter())
        self._news.discard(stream_id)

    def settle(self) -> None:
        """At the end of this process: record what was reported since the last poll; the next process reports the rest.

        Raises:
            StreamStateError: the home does not answer; another process reports all of it again, some minutes later.
        """
        for stream_id, watched in list(self.streams.items()):
            book = self._book(stream_id)
            for _ in range(TRIES if watched.told.owed else 0):
                stored, _rules, _problem = _read(book)
                if stored is None or stored.version == watched.refused_version:
                    break
                told = self._told(stored, watched)
                left = replace(
                    told, owed=tuple(replace(one, by="") if one.by == self._by else one for one in told.owed)
                )
                with suppress(ConflictError):
                    self._settle(watched, book, stored, left)
                    break

    def _has_no_news(self, stream_id: str) -> bool:
        """Whether a stream is as it was: by one read at most, and only where the feed does not name it."""
        watched = self.streams.get(stream_id)
        if watched is None or watched.sight.seen is None or watched.told.owed or stream_id in self._news:
            return False
        if self._clock.monotonic_seconds() >= watched.whole_until:
            return False
        if watched.sight.status.upgrade_hold:
            return False  # whoever drives the upgrade may vanish, and no entry reports that
        found = self._controller.observed_again(watched.sight.seen, watched.sight.status)
        if found is None:
            return False
        sight = Sight(found[1], found[0], watched.sight.failed_upgrade, is_home_just_back=self._is_just_back)
        told = evaluate(watched.rules, sight, watched.told, self._clock.now(), self._clock.new_uuid)
        if self._is_news(watched.told, told):
            return False
        watched.sight, watched.told, watched.looked_at = sight, told, self._clock.now()
        return True

    def _book(self, stream_id: str) -> AlertBook:
        return AlertBook(self._controller.home.control(stream_id), self._controller.requested_by)

    def _evaluate(self, stream_id: str, watched: Watched, seen: Observation | None, status: StreamStatus) -> None:
        book = self._book(stream_id)
        for _ in range(TRIES):
            stored, watched.rules, problem = _read(book)
            told = self._told(stored, watched)
            deaths = NONE if seen is None else deaths_since(self._controller, told, seen)
            failed = self._failed_upgrade(watched, seen, status, told)
            watched.sight = Sight(status, seen, failed, deaths, self._is_just_back)
            now = self._clock.now()
            found = evaluate(watched.rules, watched.sight, told, now, self._clock.new_uuid, self._by)
            if not problem and self._is_news(told, found):
                version = "" if stored is None else stored.version
                try:
                    stored = book.record(stored, self._audience, found)
                    watched.refused_version = None
                except ConflictError:
                    continue
                except (StoreRefusedError, HomeAwayError):
                    if not self._controller.home.is_there():
                        raise
                    # No right to write: this process alone remembers what it has reported.
                    watched.refused_version = version
            watched.told = found
            self._tell_owed(watched)
            with suppress(ConflictError):  # the next poll records it
                is_refused = stored is None or stored.version == watched.refused_version
                self._settle(watched, book, None if is_refused else stored, watched.told)
            return

    def _told(self, stored: Stored[AlertRegister] | None, watched: Watched) -> Told:
        """What was reported, by the register; growth is measured by what this process remembers, too."""
        recorded = None if stored is None else stored.value.audiences.get(self._audience)
        if recorded is None or stored is None or stored.version == watched.refused_version:
            return watched.told
        if not self._remembers or recorded.deployment_id != watched.told.deployment_id:
            return recorded
        return replace(recorded, lag_samples=watched.told.lag_samples, state_samples=watched.told.state_samples)

    def _is_news(self, told: Told, found: Told) -> bool:
        if not self._remembers:
            return found != told
        return replace(told, lag_samples={}, state_samples={}) != replace(found, lag_samples={}, state_samples={})

    def _tell_owed(self, watched: Watched) -> None:
        """Report what this process owes."""
        for owed in watched.told.owed:
            change = owed_change(watched.sight.status, owed)
            if owed.by == self._by and change.message_id not in watched.heard:
                self._tell(change)
                watched.heard.add(change.message_id)

    def _settle(self, watched: Watched, book: AlertBook, stored: Stored[AlertRegister] | None, told: Told) -> None:
        """Record what has arrived as reported.

        Args:
            stored: the register; None where this process alone remembers.

        Raises:
            ConflictError: another writer was first.
        """
        waiting = self._waiting()
        ids = {one: owed_change(watched.sight.status, one).message_id for one in told.owed}
        left = tuple(one for one, name in ids.items() if name not in watched.heard or name in waiting)
        found = replace(told, owed=left)
        if stored is not None and left != stored.value.audiences.get(self._audience, Told()).owed:
            book.record(stored, self._audience, found)
        watched.told = found
        watched.heard.intersection_update(ids[one] for one in left)

    def _failed_upgrade(
        self, watched: Watched, seen: Observation | None, status: StreamStatus, told: Told
    ) -> Mapping[str, str]:
        """The last upgrade that did not end as asked, and why; nothing once the stream has continued since."""
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
            was_abandoned = view.is_cancelled and self._controller.upgrades.was_abandoned(view)
            watched.downtimes, text = view.downtimes, _why_failed(view, was_abandoned=was_abandoned)
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
        if self._away_since is not None:
            self._back_since = self._clock.monotonic_seconds()
        self._away_since = None
        if self._away is not None:
            gone, self._away = self._away, None
            self._tell(AlertChange("resolved", "", "", gone, self._clock.now()))

    @property
    def _is_just_back(self) -> bool:
        if self._away_since is not None:
            return True
        since = self._back_since
        return since is not None and self._clock.monotonic_seconds() - since < HOME_AWAY_SECONDS

    @property
    def is_away(self) -> bool:
        """Whether the home did not answer at the last poll."""
        return self._away_since is not None


def _read(book: AlertBook) -> tuple[Stored[AlertRegister] | None, AlertRules, str]:
    """The register, its rules, and what is wrong with it; "" for nothing: a damaged one is left as it is."""
    try:
        stored = book.read()
    except DataError as error:
        return None, AlertRules(), error.message
    return stored, AlertRules() if stored is None else stored.value.rules, ""


def _why_failed(view: UpgradeView, *, was_abandoned: bool) -> str:
    """Why an upgrade did not end as asked; "" where it did, is under way, or was cancelled by a person."""
    error = view.as_error()
    if error is None or (view.is_cancelled and not was_abandoned):
        return ""
    text = view.state.text
    return f"{view.upgrade_id}: {error.message}{f': {text}' if text else ''}"


# Rounds of an ``AlertWatch`` in their own thread, so that restarts wait for no alert.

ROUND_SECONDS = 60.0
"""How often each stream is looked at."""


class Rounds:
    """Looks at every stream again and again until it is ended.

    Args:
        say: gets one line on what went wrong, once for each reason.
    """

    def __init__(self, watch: AlertWatch, say: Callable[[str], None], round_seconds: float = ROUND_SECONDS) -> None:
        self._watch = watch
        self._say = say
        self._round_seconds = round_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="streamstate-alerts", daemon=True)

    def begin(self) -> None:
        """Start; the first round runs at once."""
        self._thread.start()

    def end(self, seconds: float = 10.0) -> None:
        """End after the current stream, and wait for that for ``seconds`` at most."""
        self._over.set()
        self._thread.join(seconds)

    def _work(self) -> None:
        said = ""
        while not self._over.is_set():
            text = self.once()
            if text and text != said:
                self._say(text)
            said = text
            self._over.wait(self._round_seconds)

    def once(self) -> str:
        """One round; what went wrong, in one line, "" for nothing."""
        try:
            self._watch.look(self._over.is_set)
        except StreamStateError as error:
            return shortened(f"alerts are looked at again later: {error}", (), 500, in_a_line=True)
        except Exception as error:  # a defect at one stream must not end the watch of all
            return shortened(f"alerts: unexpected {type(error).__name__}: {error}", (), 500, in_a_line=True)
        return ""
