"""Events and log lines of a driver."""

from __future__ import annotations

import io
import sys

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.reports import Reporter, say_to_driver_log
from airflow_streamstate.errors import DataError, FencedError, StoreRefusedError, UnavailableError
from airflow_streamstate.protocol.events import Failed, Noted, Started
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock
from support.faulty_store import Fault, FaultPlan, FaultyStore


class Desk:
    """A reporter, its store, and its lines."""

    def __init__(self, plan: FaultPlan | None = None, secrets: tuple[str, ...] = ()) -> None:
        self.memory = MemoryStore()
        self.clock = FakeClock()
        self.lines: list[str] = []
        journal = StreamControl(FaultyStore(self.memory, plan), "orders", self.clock).journal("d-0001")
        self.reporter = Reporter(journal, 1, self.clock, self.lines.append, secrets)

    def kinds(self) -> list[str]:
        journal = StreamControl(self.memory, "orders", self.clock).journal("d-0001")
        return [entry.event.kind for entry in journal.events() if entry.event is not None]


def write_started(desk: Desk) -> None:
    desk.reporter.write(Started, spark_version="4.2.0", application_id="local-1")


def test_an_event_is_written_once_the_store_is_back() -> None:
    """A store outage never ends the job: the event waits for the store, and the log reports it once."""
    desk = Desk(FaultPlan(dict.fromkeys(range(1, 9), Fault.UNAVAILABLE)))
    write_started(desk)
    assert desk.kinds() == ["Started"]
    assert len([line for line in desk.lines if "out of reach" in line]) == 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_event_whose_outcome_is_unknown_is_written_once(number: int) -> None:
    """The reporter reads back a lost reply before anything else (Law 8)."""
    faults = {number: Fault.REPLY_LOST, **dict.fromkeys(range(number + 1, number + 9), Fault.UNAVAILABLE)}
    desk = Desk(FaultPlan(faults))
    write_started(desk)
    desk.reporter.write(Started, spark_version="4.2.1", application_id="local-2")
    assert desk.kinds() == ["Started", "Started"]


def test_notes_wait_for_the_store_and_keep_their_order() -> None:
    """A note is in the log at once, and an event as soon as the store takes it."""
    desk = Desk(FaultPlan({1: Fault.UNAVAILABLE, 2: Fault.UNAVAILABLE}))
    desk.reporter.note("the first thing", size=1)
    assert desk.kinds() == []
    assert "the first thing" in desk.lines
    write_started(desk)
    assert desk.kinds() == ["Noted", "Started"]


def test_a_silenced_reporter_writes_nothing_more() -> None:
    """An attempt that was replaced stops writing (Law 4)."""
    desk = Desk()
    desk.reporter.silenced = True
    with pytest.raises(FencedError):
        write_started(desk)
    desk.reporter.note("too late")
    assert desk.kinds() == []


def test_secrets_never_reach_an_event_or_the_log() -> None:
    """A password in the configuration is hidden wherever a text is shown."""
    desk = Desk(secrets=("hunter2-secret",))
    desk.reporter.write(
        Failed, error="login with hunter2-secret", traceback="x hunter2-secret y", explanation="hunter2-secret is wrong"
    )
    desk.reporter.note("tried hunter2-secret", why="hunter2-secret", queries=["hunter2-secret"])
    keys = [info.key for info in desk.memory.list_objects("")]
    stored = b"".join(stored.body for key in keys if (stored := desk.memory.get(key)) is not None)
    assert b"hunter2" not in stored
    assert not any("hunter2" in line for line in desk.lines)


def test_earlier_events_are_known_after_loading() -> None:
    """An attempt knows the events of earlier ones, and continues with the next number (1a.13)."""
    desk = Desk()
    write_started(desk)
    journal = StreamControl(desk.memory, "orders", desk.clock).journal("d-0001")
    later = Reporter(journal, 2, desk.clock, desk.lines.append)
    later.load()
    later.write(Noted, text="hello", facts={})
    assert [event.kind for event in later.events] == ["Started", "Noted"]
    assert desk.kinds() == ["Started", "Noted"]


def test_what_lies_among_the_events_and_is_none_stops_nobody() -> None:
    """An unreadable object among the events is passed over (Law 7)."""
    desk = Desk()
    desk.memory.put("orders/deployments/d-0001/events/00000001.json", b"{")
    desk.reporter.load()
    write_started(desk)
    assert desk.kinds() == ["Started"]


class FullDisk(io.StringIO):
    """A file without room for a line."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def closed() -> io.StringIO:
    """The stderr of a script that closes it."""
    log = io.StringIO()
    log.close()
    return log


@pytest.mark.parametrize("log", [FullDisk(), closed()], ids=["full", "closed"])
def test_a_log_that_takes_no_line_costs_the_line_alone(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reports a full disk survives, and writes heartbeats again once there is room."""
    monkeypatch.setattr(sys, "stderr", log)
    say_to_driver_log("the store is out of reach, and is asked again")


def test_outages_are_kept_apart_by_what_failed() -> None:
    """The success of one activity neither ends the outage of any other, nor repeats its lines more than twice a
    minute."""
    desk = Desk()
    refused, away = StoreRefusedError("permission denied"), UnavailableError("the home is not there")
    for second in range(300):
        desk.reporter.outage("snapshot stopped", refused)
        if second == 100:
            desk.reporter.outage("a sign of life", away)
        desk.reporter.answered("a sign of life")
        desk.clock.advance(1.0)
    denied = [line for line in desk.lines if "permission denied" in line]
    assert len(denied) == 10
    assert [line for line in desk.lines if line not in denied] == [
        "the store is out of reach, and is asked again (a sign of life: the home is not there.)",
        "the store is within reach again, after 0 s (a sign of life)",
    ]
    desk.reporter.answered("snapshot stopped")
    assert desk.lines[-1] == "the store is within reach again, after 300 s (snapshot stopped)"


def test_what_is_no_outage_of_the_store_is_not_called_one() -> None:
    """Such as damaged data, which the agent reads again."""
    desk = Desk()
    desk.reporter.outage("a poll of the commands", DataError("the log is damaged"))
    desk.reporter.answered("a poll of the commands")
    assert desk.lines == [
        "this failed and is tried again (a poll of the commands: the log is damaged.)",
        "this works again, after 0 s (a poll of the commands)",
    ]
