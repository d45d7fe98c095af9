"""``airflow_streamstate.plan.record``: plans in a home."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import HomeAwayError, OutcomeUnknownError
from airflow_streamstate.plan.model import RecordedPlan
from airflow_streamstate.plan.record import last_recorded_plans, plan_behind, plans_behind, record_plan, recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import deployment_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.store.memory import MemoryStore
from support.examples import example
from support.fake_clock import FakeClock
from support.vanishing_store import Absence, VanishingStore

FIRST = replace(example(RecordedPlan), number=1, attempt=1)


def make_control() -> StreamControl:
    """An empty home."""
    return StreamControl(MemoryStore("home"), "orders", SYSTEM_CLOCK)


def test_a_plan_that_is_the_same_is_recorded_once() -> None:
    """By whichever attempt; what the log pins of a later start is no difference."""
    control = make_control()
    assert record_plan(control, FIRST).number == 1
    pinned = replace(FIRST.plan, pinned={"spark.sql.shuffle.partitions": "9"})
    assert record_plan(control, replace(FIRST, attempt=2, plan=pinned)) == FIRST
    assert record_plan(control, replace(FIRST, write_id="another")) == FIRST


def test_a_plan_that_differs_gets_the_next_number() -> None:
    """A script that read other settings when it was started again loses nothing; the newest is the one that counts."""
    control = make_control()
    record_plan(control, FIRST)
    other = replace(FIRST, attempt=2, plan=replace(FIRST.plan, trigger="once"))
    assert record_plan(control, other).number == 2
    assert record_plan(control, replace(FIRST, attempt=3)).number == 3
    assert recorded_plans(control, "d-0003") == {FIRST.query_name: FIRST.plan}
    assert record_plan(control, replace(other, attempt=4)).number == 4
    assert recorded_plans(control, "d-0003") == {FIRST.query_name: other.plan}
    assert control.home.get(layout.plan_key("orders", "d-0003", FIRST.query_name, 2)) is not None


def test_plans_of_several_queries_are_read_and_what_cannot_be_read_is_none() -> None:
    """A damaged one hides no other (Law 7)."""
    control = make_control()
    record_plan(control, FIRST)
    record_plan(control, replace(FIRST, query_name="a/b", plan=replace(FIRST.plan, query_name="a/b")))
    control.home.put(layout.plan_key("orders", "d-0003", FIRST.query_name, 2), b"{")
    assert sorted(recorded_plans(control, "d-0003")) == ["a/b", FIRST.query_name]
    assert recorded_plans(control, "d-0004") == {}
    assert record_plan(control, replace(FIRST, attempt=2)).number == 3


def test_of_a_start_that_was_refused_the_plan_before_it_counts() -> None:
    """Its query recorded none; another one's own plan wins over an older one."""
    control = make_control()
    spec = replace(example(DeploymentSpec), stream_id="orders")
    for number, before in enumerate((None, "d-0001", "d-0002"), 1):
        start = replace(spec.start, predecessor_id=before)
        control.create_spec(replace(spec, deployment_id=deployment_id_for(number), fencing_token=number, start=start))
    older = replace(FIRST.plan, trigger="once")
    record_plan(control, replace(FIRST, deployment_id="d-0001", plan=older))
    other = replace(FIRST, query_name="a/b", plan=replace(FIRST.plan, query_name="a/b"))
    record_plan(control, replace(other, deployment_id="d-0001", plan=replace(other.plan, trigger="once")))
    record_plan(control, replace(other, deployment_id="d-0002"))
    assert recorded_plans(control, "d-0003") == {}
    both = (FIRST.query_name, "a/b")
    assert last_recorded_plans(control, "d-0003", both) == {FIRST.query_name: older, "a/b": other.plan}
    assert last_recorded_plans(control, "d-0003", ("a/b",)) == {"a/b": other.plan}


def test_a_write_whose_reply_was_lost_is_one_record() -> None:
    """It is read back (Law 8)."""

    class Lossy(MemoryStore):
        def create(self, key: str, body: bytes) -> str:
            super().create(key, body)
            raise OutcomeUnknownError("no reply", key=key)

    control = StreamControl(Lossy("home"), "orders", SYSTEM_CLOCK)
    assert record_plan(control, FIRST).number == 1
    assert recorded_plans(control, "d-0003") == {FIRST.query_name: FIRST.plan}


NAME = FIRST.query_name


def keep(control: StreamControl, deployment: int, first_batch_id: int, mode: str, attempt: int = 1) -> None:
    """A start of a deployment whose plan made the state from this batch on."""
    plan = replace(FIRST.plan, output_mode=mode)
    deployment_id = deployment_id_for(deployment)
    record_plan(
        control,
        replace(FIRST, deployment_id=deployment_id, attempt=attempt, plan=plan, first_batch_id=first_batch_id),
    )


def test_the_plan_behind_a_committed_batch_is_known_over_refused_deployments() -> None:
    """Law 17: by the first batch of each plan; a deployment that was refused has none, and one whose plan committed
    nothing made no state."""
    control = make_control()
    keep(control, 1, 0, "update")
    keep(control, 1, 5, "append", attempt=2)
    assert [each.plan.output_mode for each in plans_behind(control, "d-0001", NAME, 4)] == ["update", "append"]
    assert [each.plan.output_mode for each in plans_behind(control, "d-0001", NAME, 7)] == ["append"]
    start = StartPlan("restore", "d-0001-stopped-000001", "d-0001")
    control.create_spec(replace(example(DeploymentSpec), stream_id="orders", deployment_id="d-0002", start=start))
    assert [each.plan.output_mode for each in plans_behind(control, "d-0002", NAME, 7)] == ["append"]
    assert plan_behind(control, "d-0002", NAME) == plan_behind(control, "d-0001", NAME)
    keep(control, 2, 8, "complete")
    assert [each.plan.output_mode for each in plans_behind(control, "d-0002", NAME, 7)] == ["append", "complete"]
    assert [each.plan.output_mode for each in plans_behind(control, "d-0002", NAME, 8)] == ["complete"]


@pytest.mark.parametrize(("is_drained", "modes"), [(True, []), (False, ["update"])])
def test_a_flushed_query_has_no_state_of_an_earlier_plan(is_drained: bool, modes: list[str]) -> None:
    """Law 17: a seed starts with none, so it is not compared with what made the state before the drain."""
    control = make_control()
    keep(control, 1, 0, "update")
    manifest = replace(example(SnapshotManifest), stream_id="orders", deployment_id="d-0001")
    query = replace(next(iter(manifest.queries.values())), drained=is_drained)
    manifest = replace(manifest, queries={NAME: query})
    control.create_manifest(manifest)
    start = StartPlan("seed" if is_drained else "restore", manifest.snapshot_id, "d-0001")
    control.create_spec(replace(example(DeploymentSpec), stream_id="orders", deployment_id="d-0002", start=start))
    assert [each.plan.output_mode for each in plans_behind(control, "d-0002", NAME, 7)] == modes


@pytest.mark.parametrize("absence", ["unmounted", "renamed"])
def test_plans_of_a_home_that_has_just_gone_are_unknown_and_not_none(absence: Absence) -> None:
    """Though a server's home was seen a moment ago: else a change is compared with nothing. (Law 17)"""
    home = VanishingStore(MemoryStore("home"))
    presence = HomePresence(home, FakeClock(), is_expected=True)
    HomePresence(home, FakeClock()).begin("ada")
    control = StreamControl(home, "flights", FakeClock(), presence)
    assert recorded_plans(control, "d-0001") == {}
    presence.need()
    home.vanish(absence)
    with pytest.raises(HomeAwayError):
        recorded_plans(control, "d-0001")
