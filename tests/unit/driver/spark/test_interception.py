from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.fake_clock import FakeClock

pytest.importorskip("pyspark")

from pyspark.errors import PySparkValueError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQueryManager

from airflow_streamstate.driver.spark.interception import Interception, SupervisedQuery


class SomethingFailedError(Exception):
    pass


@dataclass
class Handle:
    """What the manager needs of a handle; the real one needs a JVM."""

    is_over: bool = False
    has_failed: bool = False
    is_held_back: bool = False
    waits_in_vain: int = 0
    run_ids: set[str] = field(default_factory=set)

    def wait_in_vain(self) -> None:
        self.waits_in_vain += 1

    def raise_failure(self) -> None:
        if self.has_failed:
            raise SomethingFailedError


class Manager:
    """A session's manager in the JVM, where only ours are active."""

    def active(self) -> list[Any]:
        return []

    def resetTerminated(self) -> None:
        """Spark forgets as well."""


def _watching(*handles: Handle, manager: Manager | None = None) -> tuple[Interception, FakeClock, Manager]:
    clock = FakeClock()
    interception = Interception(cast("Any", None), clock)
    manager = manager or Manager()
    for handle in handles:
        interception.remember(manager, cast("SupervisedQuery", handle))
    return interception, clock, manager


def test_waiting_for_any_ends_with_the_first_that_is_over() -> None:
    """While one continues another may end: that is enough, as in Spark."""
    interception, _, manager = _watching(Handle(), Handle(is_over=True))
    assert interception.await_any(manager, 5) is True
    assert interception.await_any(manager, None) is None


def test_the_callers_timeout_is_one_deadline() -> None:
    """However many polls it takes."""
    interception, clock, manager = _watching(Handle(), Handle())
    assert interception.await_any(manager, 2.5) is False
    assert clock.monotonic_seconds() == pytest.approx(2.5)
    assert interception.await_any(manager, 0) is False


def test_timeouts_that_spark_refuses_are_refused() -> None:
    """With Spark's own error."""
    interception, _, manager = _watching()
    for timeout in (-1, "soon"):
        with pytest.raises(PySparkValueError):
            interception.await_any(manager, cast("Any", timeout))


def test_a_failure_that_is_held_back_ends_no_wait() -> None:
    """Other queries are to run on without it; one that comes to a good end still ends the wait."""
    held, other = Handle(is_over=True, has_failed=True, is_held_back=True), Handle()
    interception, _, manager = _watching(held, other)
    assert interception.await_any(manager, 5) is False
    other.is_over = True
    assert interception.await_any(manager, 5) is True


def test_a_loop_around_a_wait_that_comes_back_at_once_does_not_spin() -> None:
    """The query that has ended is notified of each such wait, and paces it."""
    handle = Handle(is_over=True)
    interception, _, manager = _watching(handle)
    for _ in range(3):
        assert interception.await_any(manager, 5) is True
    assert handle.waits_in_vain == 3


def test_a_real_failure_comes_through_before_a_good_end() -> None:
    """Spark throws if any query ended with an exception."""
    interception, _, manager = _watching(Handle(is_over=True), Handle(is_over=True, has_failed=True))
    with pytest.raises(SomethingFailedError):
        interception.await_any(manager, None)


def test_what_ended_is_remembered_until_it_is_reset() -> None:
    """Also once its handle is let go of, because another query was started in the meantime."""
    interception, _, manager = _watching(Handle(is_over=True), Handle(), Handle())
    assert interception.await_any(manager, 1) is True
    interception.reset_terminated(manager)
    assert interception.await_any(manager, 1) is False
    failed = Handle(is_over=True, has_failed=True)
    interception.remember(manager, cast("SupervisedQuery", failed))
    interception.remember(manager, cast("SupervisedQuery", Handle()))
    with pytest.raises(SomethingFailedError):
        interception.await_any(manager, 1)
    interception.reset_terminated(manager)
    assert interception.await_any(manager, 1) is False


def test_each_session_has_its_own_queries() -> None:
    """``newSession()`` has its own manager."""
    interception, _, manager = _watching(Handle(), Handle(is_over=True))
    other = Manager()
    mine = Handle()
    interception.remember(other, cast("SupervisedQuery", mine))
    assert interception.await_any(other, 1) is False
    assert interception.active(other) == [mine]
    assert len(interception.active(manager)) == 1


def test_handles_of_good_ends_are_not_kept_for_ever() -> None:
    """A loop that starts its query a million times needs no memory for it."""
    interception, _, manager = _watching(*(Handle(is_over=True) for _ in range(100)), Handle())
    assert len(interception._handles) == 1
    assert interception.await_any(manager, 1) is True


class Asked(Interception):
    """Counts how often it is asked."""

    asked = 0

    def active(self, jmanager: Any) -> list[Any]:
        self.asked += 1
        return []


def test_a_second_interception_takes_the_place_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, of a pass that has ended, is asked nothing any more: neither of them is wrapped around the other."""
    for name in ("start", "toTable"):
        monkeypatch.setattr(DataStreamWriter, name, getattr(DataStreamWriter, name))
    for name in ("active", "get", "awaitAnyTermination", "resetTerminated"):
        monkeypatch.setattr(StreamingQueryManager, name, getattr(StreamingQueryManager, name))
    first, second = (Asked(cast("Any", None), FakeClock()) for _ in range(2))
    first.install()
    second.install()
    jmanager = SimpleNamespace(get=lambda _id: None)
    assert StreamingQueryManager(cast("Any", jmanager)).get("6a1b7a2e-0000-4000-8000-000000000001") is None
    assert (first.asked, second.asked) == (0, 1)


class Decider:
    """Records what it receives about the session."""

    def __init__(self) -> None:
        version = SimpleNamespace(master="local[8]", conf={})
        self.attempt = SimpleNamespace(spec=SimpleNamespace(version=version))
        self.told: list[tuple[str, str, tuple[str, ...]]] = []

    def session_started(self, spark_version: str, application_id: str, notes: tuple[str, ...] = ()) -> None:
        self.told.append((spark_version, application_id, notes))


def _session(*, jsc: object = "a context", property_of: Any = lambda _key: None) -> SimpleNamespace:
    """A session whose script set its own master, as far as it is asked."""
    system = SimpleNamespace(getProperty=property_of)
    return SimpleNamespace(
        _sc=SimpleNamespace(_jsc=jsc),
        _jvm=SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system))),
        version="4.2.0",
        sparkContext=SimpleNamespace(applicationId="local-1"),
        conf=SimpleNamespace(getAll={"spark.master": "local[2]"}),
    )


def test_the_session_of_a_script_that_fails_before_its_first_start_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what the script set itself, which may be why it fails."""
    decider = Decider()
    interception = Interception(cast("Any", decider), FakeClock())
    monkeypatch.setattr(SparkSession, "_instantiatedSession", _session())
    interception.tell_of_failed_script()
    interception.tell_of_failed_script()
    (told,) = decider.told
    assert told[:2] == ("4.2.0", "local-1")
    assert told[2] == ("the script sets its own master local[2], which wins over local[8] of the deployment",)


def _gone(_key: str) -> None:
    raise ConnectionRefusedError


@pytest.mark.parametrize(
    "session", [None, _session(jsc=None), _session(property_of=_gone)], ids=["no", "stopped", "gone"]
)
def test_a_session_that_does_not_answer_does_not_hide_the_error_of_the_script(
    monkeypatch: pytest.MonkeyPatch, session: Any
) -> None:
    """There may be none, or it was stopped, or its JVM is gone."""
    decider = Decider()
    monkeypatch.setattr(SparkSession, "_instantiatedSession", session)
    Interception(cast("Any", decider), FakeClock()).tell_of_failed_script()
    assert decider.told == []
