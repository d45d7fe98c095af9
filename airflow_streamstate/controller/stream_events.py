"""What happened to a stream as a whole: read from its journals, so that nothing is lost while no reader runs.

The journals of its deployments and upgrades are the record. What no journal reports (a driver that died without a
word, a first commit, restarts abandoned) is seen from the present state, and reported once by the cursor of the reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_streamstate.control.command_status import ordered_by
from airflow_streamstate.control.objects import Remembered
from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import UpgradeJournal, UpgradeState
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.handovers import last_beats, last_sign
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.wait.waiting import is_healthy
from airflow_streamstate.controller.wait.watching import redacted
from airflow_streamstate.errors import DataError, DeploymentNotFoundError
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Claimed,
    Event,
    StreamCursor,
    StreamEvent,
    StreamEventKind,
)
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.ids import order_of
from airflow_streamstate.protocol.policies import Alert
from airflow_streamstate.protocol.upgrades import Upgrade

MAX_REMEMBERED = 4096
UPGRADES_REMEMBERED = 20
_OF_RULE: Mapping[str, StreamEventKind] = {
    "driver_silent": "stalled",
    "no_commit": "stalled",
    "lag": "lagging",
    "lag_growing": "lagging",
}
CLOCKS_DIFFER = timedelta(hours=1)
"""Of two controllers that requested upgrades one after the other."""


class StreamEvents:
    """Reads the events of streams, each reader with its own cursor."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._guard = threading.Lock()
        self._over: Remembered[tuple[str, str], UpgradeState] = Remembered(MAX_REMEMBERED)

    def present(self, stream_id: str) -> StreamCursor:
        """The cursor behind all that has happened; raises as ``since``."""
        control = self._context.home.need_stream(stream_id)
        seen = self._context.observer.observe(stream_id)
        begin = StreamCursor(seen.deployment_id, 0, 0, has_ended=False)
        reader = _Reader(control, seen, begin, self._ended_upgrades)
        list(reader.read(self._context))
        return reader.cursor

    def since(self, stream_id: str, cursor: StreamCursor) -> tuple[list[StreamEvent], StreamCursor]:
        """What happened after the cursor, in order, and the cursor behind it.

        Raises:
            StreamNotFoundError: there is no such stream.
            DataError: a record of it cannot be read.
            UnavailableError: the home does not answer.
        """
        control = self._context.home.need_stream(stream_id)
        seen = self._context.observer.observe(stream_id)
        reader = _Reader(control, seen, cursor, self._ended_upgrades)
        return list(reader.read(self._context)), reader.cursor

    def _ended_upgrades(self, control: StreamControl) -> Iterator[UpgradeState]:
        """The upgrades of a stream that have ended, each read once: what has ended stays as it is."""
        journal = UpgradeJournal(control)
        for upgrade_id in journal.ids():
            key = (control.stream_id, upgrade_id)
            with self._guard:
                state = self._over.get(key)
            if state is None:
                with suppress(DataError):  # `status` and `doctor` report it; the other upgrades are reported here
                    state = journal.state(upgrade_id)
            if state is not None and state.is_over:
                with self._guard:
                    self._over[key] = state
                yield state


@dataclass
class _Reader:
    """One reading: the cursor moves with what is read."""

    control: StreamControl
    seen: Observation
    cursor: StreamCursor
    ended_upgrades: Callable[[StreamControl], Iterator[UpgradeState]]

    def read(self, context: ControllerContext) -> Iterator[StreamEvent]:
        current = self.seen.deployment_id
        has_moved = self.cursor.deployment_id != current
        if has_moved:
            for deployment_id in self._passed(current):
                try:
                    passed = context.observer.observe(self.seen.stream_id, deployment_id)
                except DeploymentNotFoundError:
                    continue  # a folder without a record: it never started, or was pruned
                yield from self._of_journal(passed)
                yield from self._left_silently(passed)
        yield from self._of_journal(self.seen)
        yield from self._of_state()
        yield from self._of_alerts()
        yield from self._of_upgrades()

    def _passed(self, current: str) -> list[str]:
        """The deployments from the cursor's on that are not current any more."""
        first, last = order_of(self.cursor.deployment_id), order_of(current)
        return [one for one in self.control.deployment_ids() if first <= order_of(one) < last]

    def _of_journal(self, seen: Observation) -> Iterator[StreamEvent]:
        if seen.deployment_id != self.cursor.deployment_id:
            self.cursor = replace(
                self.cursor, deployment_id=seen.deployment_id, number=0, attempt=0, has_ended=False, told=()
            )
        for entry in seen.events:
            if entry.number <= self.cursor.number:
                continue
            self.cursor = replace(self.cursor, number=entry.number)
            if entry.event is not None:
                yield from self._of_event(seen, entry.event, entry.number)

    def _of_event(self, seen: Observation, event: Event, number: int) -> Iterator[StreamEvent]:
        if isinstance(event, Claimed):
            if event.attempt > 1:
                yield from self._left_silently(seen)
            self.cursor = replace(self.cursor, attempt=event.attempt, has_ended=False, told=())
        elif isinstance(event, TERMINAL_EVENTS):
            self.cursor = replace(self.cursor, has_ended=True)
        for kind, text, facts in event.stream_facts(ordered_by(event, (entry.event for entry in seen.events))):
            yield StreamEvent(
                f"{event.stream_id}/{event.deployment_id}/{number}/{kind}", kind, event.stream_id, event.deployment_id,
                event.at, redacted(seen, text), {"attempt": event.attempt, **facts},
            )  # fmt: skip

    def _left_silently(self, seen: Observation) -> Iterator[StreamEvent]:
        """The end of an attempt that has a successor and recorded no end."""
        if self.cursor.attempt and not self.cursor.has_ended:
            attempt = self.cursor.attempt
            yield from self._once(
                seen, attempt, "failed", "its driver has ended without a last event", _ended_at(seen, attempt)
            )

    def _of_state(self) -> Iterator[StreamEvent]:
        """What no journal reports, of the current attempt."""
        seen, restarts = self.seen, self.seen.register.restarts
        if is_healthy(seen) and not seen.has_come_to_its_end:
            yield from self._once(seen, seen.attempt, "healthy", "each query has committed a batch", seen.observed_at)
        if seen.state == "failed" and seen.terminal is None:
            yield from self._once(seen, seen.attempt, "failed", seen.why, _ended_at(seen, seen.attempt))
        if (
            restarts is not None
            and restarts.gave_up
            and (restarts.deployment_id, restarts.attempt)
            == (
                seen.deployment_id,
                seen.attempt,
            )
        ):
            yield from self._once(seen, seen.attempt, "gave_up", restarts.gave_up, seen.observed_at)

    def _of_alerts(self) -> Iterator[StreamEvent]:
        """The alerts of the stream, once for each time that one is raised, whichever audience is notified."""
        seen, standing = self.seen, dict[str, Alert]()
        try:
            stored = AlertBook(self.control).read()
        except DataError:
            return  # the process that evaluates the rules reports it
        for told in () if stored is None else stored.value.audiences.values():
            for alert in told.standing:
                key = f"{alert.rule}/{alert.subject}"
                if alert.rule in _OF_RULE and (key not in standing or alert.raised_at < standing[key].raised_at):
                    standing[key] = alert
        known = self.cursor.alerts
        self.cursor = replace(self.cursor, alerts=tuple(sorted(standing)))
        for key, alert in sorted(standing.items()):
            if key not in known:
                yield StreamEvent(
                    f"{seen.stream_id}/alerts/{alert.alert_id}", _OF_RULE[alert.rule], seen.stream_id,
                    seen.deployment_id, alert.raised_at, redacted(seen, alert.text),
                    {"attempt": seen.attempt, "rule": alert.rule, "subject": alert.subject},
                )  # fmt: skip

    def _once(
        self, seen: Observation, attempt: int, kind: StreamEventKind, text: str, at: datetime
    ) -> Iterator[StreamEvent]:
        event_id = f"{seen.stream_id}/{seen.deployment_id}/a{attempt}/{kind}"
        if event_id in self.cursor.told:
            return
        self.cursor = replace(self.cursor, told=(*self.cursor.told, event_id))
        yield StreamEvent(
            event_id, kind, seen.stream_id, seen.deployment_id, at, redacted(seen, text), {"attempt": attempt}
        )  # fmt: skip

    def _of_upgrades(self) -> Iterator[StreamEvent]:
        new = [
            state
            for state in self.ended_upgrades(self.control)
            if state.upgrade.upgrade_id not in self.cursor.upgrades and not self._is_of_before(state.upgrade)
        ]
        for state in sorted(new, key=lambda one: one.phase_since):
            yield from self._of_upgrade(state)

    def _is_of_before(self, upgrade: Upgrade) -> bool:
        told_at = self.cursor.upgraded_at
        return told_at is not None and upgrade.created_at < told_at - CLOCKS_DIFFER

    def _of_upgrade(self, state: UpgradeState) -> Iterator[StreamEvent]:
        upgrade = state.upgrade
        told_at: datetime | None = self.cursor.upgraded_at
        self.cursor = replace(
            self.cursor,
            upgrades=(*self.cursor.upgrades, upgrade.upgrade_id)[-UPGRADES_REMEMBERED:],
            upgraded_at=upgrade.created_at if told_at is None else max(told_at, upgrade.created_at),
        )
        kinds: list[tuple[StreamEventKind, str]] = []
        if state.phase in ("upgraded", "rolled_back"):
            kinds.append((state.phase, state.text or state.phase.replace("_", " ")))
        elif state.phase == "failed":
            kinds.append(("failed", f"the {upgrade.asked} has failed: {state.text}"))
        if state.audit_ok is False:
            kinds.append(("audit_failed", "the lineage is not complete: `streamstate audit` shows where"))
        deployment_id = state.returned_deployment_id or state.new_deployment_id or upgrade.old_deployment_id
        facts = selected(upgrade, "upgrade_id from_deployment_id=old_deployment_id")
        facts |= selected(state, "mode verdict not_running_seconds")
        for kind, text in kinds:
            yield StreamEvent(
                f"{upgrade.stream_id}/{upgrade.upgrade_id}/{kind}", kind, upgrade.stream_id, deployment_id,
                state.phase_since, redacted(self.seen, text), facts,
            )  # fmt: skip


def _ended_at(seen: Observation, attempt: int) -> datetime:
    """The last sign of life of an attempt that ended without a terminal event."""
    events = [entry.event for entry in seen.events if entry.event is not None]
    said = [event for event in events if event.attempt == attempt]
    if not said:
        return seen.silent_since_at
    signs = {} if seen.heartbeat is None else {seen.deployment_id: seen.heartbeat}
    return last_sign(said, last_beats(events, signs))
