"""How the state of a query is rewritten at a start, by simulated drivers (Laws 5, 9, 11)."""

from __future__ import annotations

import pytest

from airflow_streamstate.driver.start.state_rewrite import check_told_apart
from airflow_streamstate.errors import IncompatibleUpgradeError
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Failed, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan, StateRewrite
from airflow_streamstate.protocol.terms.version import Artifact
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan, waiting_script
from support.simulated_query import SimulatedPlan

RESCALED = StateRewrite(partitions=3, state_store="rocksdb")
FILE, OTHER = (Artifact(name, digest * 32) for name, digest in (("a.py", "0a"), ("b.py", "0b")))


@pytest.fixture
def plan() -> SimulatedPlan:
    """A query that has more rows than it reads in this story."""
    return make_plan(400)


def stopped(stream: SimulatedStream, plan: SimulatedPlan | None, deployment_id: str, at: float) -> str:
    """Run a deployment until it is stopped; the snapshot that it leaves. Without a plan its script starts nothing."""
    stream.order_at(at, StopRequest, deployment_id)

    def idle(driver: SimulatedDriver) -> None:
        driver.clock.sleep(1.0)

    assert stream.run(idle if plan is None else waiting_script(plan), deployment_id) == 0
    snapshot_id = stream.events_of(Stopped, deployment_id)[0].snapshot_id if plan is not None else None
    return snapshot_id or f"{deployment_id}-stopped-000001"


def started(stream: SimulatedStream, deployment_id: str) -> QueryStarted:
    return stream.events_of(QueryStarted, deployment_id)[0]


def is_rewritten(event: QueryStarted) -> bool:
    return any("rewritten" in words for words in event.repairs)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, True),
        (StateRewrite(partitions=2, undoes="d-0002"), False),
        (StateRewrite(partitions=5, state_store="rocksdb"), True),
    ],
)
def test_a_query_that_was_never_started_is_still_to_be_rewritten(
    stream: SimulatedStream, plan: SimulatedPlan, asked: StateRewrite | None, expected: bool
) -> None:
    """Its state is carried on as it was before the version that asked for the rewrite: the next version makes up for
    it, and a rollback takes nothing back."""
    first = stopped(stream, plan, "d-0001", 4.1)
    stream.deploy(2, StartPlan("restore", first, "d-0001", rewrite=RESCALED))
    second = stopped(stream, None, "d-0002", 8.0)
    stream.deploy(3, StartPlan("restore", second, "d-0002", rewrite=asked))
    stopped(stream, plan, "d-0003", 20.0)
    event = started(stream, "d-0003")
    assert event.how == "restored"
    assert is_rewritten(event) is expected


def test_a_query_that_was_started_is_rewritten_once(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """The next version restores it as it is."""
    first = stopped(stream, plan, "d-0001", 4.1)
    stream.deploy(2, StartPlan("restore", first, "d-0001", rewrite=RESCALED))
    second = stopped(stream, plan, "d-0002", 8.0)
    assert is_rewritten(started(stream, "d-0002"))
    stream.deploy(3, StartPlan("restore", second, "d-0002"))
    stopped(stream, plan, "d-0003", 20.0)
    assert not is_rewritten(started(stream, "d-0003"))


def test_two_migrations_never_follow_each_other_unseen(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """The first was made for the version before, which never started the query."""
    first = stopped(stream, plan, "d-0001", 4.1)
    stream.deploy(2, StartPlan("restore", first, "d-0001", rewrite=StateRewrite(migration=FILE)))
    second = stopped(stream, None, "d-0002", 8.0)
    stream.deploy(3, StartPlan("restore", second, "d-0002", rewrite=StateRewrite(migration=OTHER)))
    assert stream.run(waiting_script(plan), "d-0003") != 0
    assert "was never started in the version before" in stream.events_of(Failed, "d-0003")[0].error


def test_state_in_another_store_than_rocksdb_is_refused(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """And the stream has what it had."""
    first = stopped(stream, plan, "d-0001", 4.1)
    stream.deploy(2, StartPlan("restore", first, "d-0001", rewrite=StateRewrite(partitions=3)))
    assert stream.run(waiting_script(plan), "d-0002") != 0
    assert "RocksDB alone" in stream.events_of(Failed, "d-0002")[0].error
    assert stream.events_of(QueryStarted, "d-0002") == []


def test_a_drain_flushes_a_query_on_the_state_that_was_still_to_be_rewritten(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """It is ordered to drain before it starts the query, which the version before never started."""
    first = stopped(stream, plan, "d-0001", 4.1)
    stream.deploy(2, StartPlan("restore", first, "d-0001", rewrite=RESCALED))
    second = stopped(stream, None, "d-0002", 8.0)
    stream.deploy(3, StartPlan("restore", second, "d-0002"))
    stream.order(DrainNotification, "d-0003")
    said = len(stream.said)
    assert stream.run(waiting_script(plan), "d-0003") == 0
    assert stream.events_of(Drained, "d-0003")
    assert any("rows rewritten, in" in line for line in stream.said[said:])


def test_between_two_sparks_no_aggregate_is_taken_for_a_new_one() -> None:
    """One that each writes down in its own way would start with no rows. Alone, either change is certain."""
    both = (("Sum(v)", "Max(v)"), ("Sum(cast(v as bigint))", "Max(v)"))
    with pytest.raises(IncompatibleUpgradeError, match="not certain which aggregate is a new one") as refused:
        check_told_apart("q", ("3.5.9", "4.2.0"), both)
    assert refused.value.context["gone"] == ["Sum(v)"]
    check_told_apart("q", ("4.2.0", "4.2.1"), both)
    for texts in ((("Sum(v)",), ("Sum(v)", "Max(v)")), (("Sum(v)", "Max(v)"), ("Max(v)",))):
        check_told_apart("q", ("3.5.9", "4.2.0"), texts)
