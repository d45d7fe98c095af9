"""A home that vanishes under a running driver: the queries run on, and the agent continues when it is back."""

from __future__ import annotations

import pytest

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.start.claim import need_spec
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Noted, SnapshotReady, Stopped
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script
from support.vanishing_store import ABSENCES, Absence, VanishingStore

pytestmark = pytest.mark.fast


def stream_elsewhere(*, has_record: bool = True) -> tuple[SimulatedStream, VanishingStore]:
    """A deployed stream whose home may vanish, and whose checkpoints are elsewhere."""
    home = VanishingStore(MemoryStore("home"))
    stream = SimulatedStream(home=home, checkpoints=MemoryStore("checkpoints"))
    if has_record:
        HomePresence(home, stream.clock).begin("tests")
    stream.deploy()
    return stream, home


def driver_of(stream: SimulatedStream, home: Store) -> SimulatedDriver:
    return SimulatedDriver(stream, control=StreamControl(home, STREAM, stream.clock))


@pytest.mark.parametrize("absence", ABSENCES)
@pytest.mark.parametrize("has_record", [True, False])
def test_a_driver_lives_on_without_its_home(absence: Absence, has_record: bool) -> None:
    """Five minutes without it: no batch is lost, no fence, no new home; later orders are done. (Laws 4 and 6)"""
    stream, home = stream_elsewhere(has_record=has_record)
    plan = make_plan(500)
    stream.clock.after(20.0, lambda: home.vanish(absence))
    stream.clock.after(320.0, home.come_back)
    stream.order_at(330.0, StopRequest)
    driver = driver_of(stream, home)
    assert driver.run(waiting_script(plan)) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert "Fenced" not in stream.kinds()
    assert sum(plan.sink.counts().values()) >= 480
    assert home.left_in_its_place() == []
    assert 5 <= len([line for line in stream.said if "the store is out of reach, and is asked again" in line]) <= 24
    assert any("the store is within reach again, after" in line for line in stream.said)


def test_what_was_to_be_said_is_said_when_the_home_is_back() -> None:
    """Events wait for the home, those of an ending under way too; none is lost or written twice. (Law 8)"""
    stream, home = stream_elsewhere(has_record=False)
    plan = make_plan(500)
    stream.order_at(19.0, SnapshotRequest)
    stream.order_at(40.0, StopRequest)
    stream.clock.after(40.0, lambda: home.vanish("unmounted"))
    stream.clock.after(200.0, home.come_back)
    driver = driver_of(stream, home)
    stream.clock.after(60.0, lambda: driver.attempt_life.attempt.reporter.note("the weather changed"))
    assert driver.run(waiting_script(plan)) == 0
    assert [note.text for note in stream.events_of(Noted)].count("the weather changed") == 1
    assert len(stream.events_of(SnapshotReady)) == 1
    assert len(stream.events_of(Stopped)) == 1
    assert home.left_in_its_place() == []


def test_another_home_in_its_place_replaces_no_driver() -> None:
    """The stream, deployed by mistake into the empty mount point, is not heeded or written. (Law 4)"""
    stream, home = stream_elsewhere()
    plan = make_plan(500)
    mistaken: list[list[str]] = []

    def redeploy() -> None:
        home.vanish("unmounted")
        HomePresence(home, stream.clock).begin("a scheduler")
        stream.deploy()
        mistaken.append(home.left_in_its_place())

    def look() -> None:
        mistaken.append(home.left_in_its_place())
        home.come_back()

    stream.clock.after(20.0, redeploy)
    stream.clock.after(200.0, look)
    stream.order_at(210.0, StopRequest)
    assert driver_of(stream, home).run(waiting_script(plan)) == 0
    assert mistaken[0] == mistaken[1]
    assert stream.kinds()[-1] == "Stopped"


def test_a_successor_in_a_restored_home_replaces_the_driver() -> None:
    """A home that was brought back from a mirror names a later attempt: the driver of before ends. (Law 4)"""
    stream, home = stream_elsewhere()

    def restore() -> None:
        home.vanish("unmounted")
        HomePresence(home, stream.clock).begin("restore-home")
        stream.deploy()
        stream.point_register("d-0001", 2)

    stream.clock.after(20.0, restore)
    assert driver_of(stream, home).run(waiting_script(make_plan(500))) == 4


def test_a_copy_of_the_home_from_before_the_attempt_replaces_no_driver() -> None:
    """Its register is older than this attempt; orders in the newer state are done. (Laws 4 and 7)"""
    stream, home = stream_elsewhere()
    copy, newer = bodies(home), {}
    attempt = stream.next_attempt()

    def put_back(old: dict[str, bytes]) -> None:
        newer.update(bodies(home))
        for key in bodies(home):
            home.delete(key)
        for key, body in old.items():
            home.create(key, body)

    stream.clock.after(20.0, lambda: put_back(copy))
    stream.clock.after(200.0, lambda: put_back(dict(newer)))
    stream.order_at(210.0, StopRequest, attempt=attempt)
    driver = SimulatedDriver(stream, attempt=attempt, control=StreamControl(home, STREAM, stream.clock))
    assert driver.run(waiting_script(make_plan(500))) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert any("was written before this attempt became current" in line for line in stream.said)


def test_a_stream_that_was_begun_anew_in_the_same_home_replaces_the_driver() -> None:
    """Its register names an earlier attempt too, and was written after this one. (Law 4)"""
    stream, home = stream_elsewhere()
    attempt = stream.next_attempt()

    def begin_anew() -> None:
        for key in bodies(home):
            if key.startswith(f"{STREAM}/"):
                home.delete(key)
        stream.deploy()

    stream.clock.after(20.0, begin_anew)
    driver = SimulatedDriver(stream, attempt=attempt, control=StreamControl(home, STREAM, stream.clock))
    assert driver.run(waiting_script(make_plan(500))) == 4


def bodies(home: Store) -> dict[str, bytes]:
    """Every object of a home."""
    found = {info.key: home.get(info.key) for info in home.list_objects("")}
    return {key: stored.body for key, stored in found.items() if stored is not None}


@pytest.mark.parametrize("has_record", [True, False])
def test_a_damaged_claim_stops_no_driver_from_obeying(has_record: bool) -> None:
    """With the home's record or without: orders are done, and no attempt is replaced. (Laws 4 and 7)"""
    stream, home = stream_elsewhere(has_record=has_record)
    stream.clock.after(20.0, lambda: home.put(layout.claim_key(STREAM, "d-0001", 1), b"{"))
    stream.clock.after(25.0, lambda: stream.point_register("d-0001", 1))
    stream.order_at(40.0, StopRequest)
    assert driver_of(stream, home).run(waiting_script(make_plan(500))) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert not [line for line in stream.said if "out of reach" in line]


def test_a_register_that_is_gone_ends_no_job() -> None:
    """Its deployments are there: it was lost, and is brought back by hand; then the driver obeys again. (Law 7)"""
    stream, home = stream_elsewhere(has_record=False)
    good = home.get(layout.register_key(STREAM))
    assert good is not None
    stream.clock.after(20.0, lambda: home.delete(layout.register_key(STREAM)))
    stream.clock.after(100.0, lambda: home.put(layout.register_key(STREAM), good.body))
    stream.order_at(110.0, StopRequest)
    assert driver_of(stream, home).run(waiting_script(make_plan(500))) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert any("the register of the stream is gone" in line for line in stream.said)


def test_a_driver_of_a_deleted_stream_ends_when_its_queries_do() -> None:
    """A home may be copied back file by file, so the queries run on until they end. (Law 4)"""
    stream, home = stream_elsewhere()

    def delete() -> None:
        for info in list(home.list_objects(f"{STREAM}/")):
            home.delete(info.key)

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(make_plan(500))
        driver.clock.sleep(20.0)
        delete()
        driver.clock.sleep(100.0)
        assert not driver.attempt_life.attempt.fence.is_fenced
        query.stop()
        driver.clock.sleep(60.0)

    assert driver_of(stream, home).run(script) == 4


@pytest.mark.parametrize("absence", ABSENCES[:2])
def test_a_query_that_starts_while_the_home_is_away_waits_for_it(absence: Absence) -> None:
    """Its checkpoint is in the home: an empty place is no place to start from. (Law 5)"""
    store = VanishingStore(MemoryStore("home"))
    stream, plan = SimulatedStream(checkpoints=store), make_plan(100)
    stream.deploy()

    def first(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(20.0)
        driver.queries[-1].stop()

    assert stream.run(first) == 0
    stream.point_register("d-0001", 2)

    def second(driver: SimulatedDriver) -> None:
        store.vanish(absence)
        stream.clock.after(60.0, store.come_back)
        driver.start(plan)
        driver.await_all()

    stream.order_at(150.0, StopRequest, attempt=2)
    assert stream.run(second, attempt=2) == 0
    assert store.left_in_its_place() == []


@pytest.mark.parametrize("absence", ABSENCES[:3])
def test_a_driver_that_is_launched_while_the_home_is_away_waits_for_it(absence: Absence) -> None:
    """Its record was there when it was launched: it is read when the home is back, within ``lost_after_seconds``."""
    stream, home = stream_elsewhere(has_record=False)
    home.vanish(absence)
    stream.clock.after(20.0, home.come_back)
    presence = HomePresence(home, stream.clock, is_expected=True)
    control = StreamControl(home, STREAM, stream.clock, presence)
    assert need_spec(control, "d-0001", stream.clock).deployment_id == "d-0001"


def test_a_sign_of_life_costs_no_look_at_the_home(stream: SimulatedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign of life reads the register, and nothing more, as long as nothing has changed."""
    asked: list[str] = []
    store = stream.checkpoints
    get = store.get
    monkeypatch.setattr(store, "get", lambda key: (asked.append(key), get(key))[1])
    clock: Clock = stream.clock

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(50))
        clock.sleep(60.0)
        asked.clear()
        driver.agent.beat_once()
        assert [
            key for key in asked if key.startswith(f"{STREAM}/stream") or "claims" in key or key == "home.json"
        ] == [layout.register_key(STREAM)]

    stream.order_at(90.0, StopRequest)
    stream.run(script)
