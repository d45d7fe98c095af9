"""Law 17: no state is ever continued by a plan that the comparison would refuse, whichever verb starts it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NoReturn

import pytest

from airflow_streamstate.driver.start import query_start
from airflow_streamstate.driver.start.checkpoints import NOT_KNOWN
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.record import plans_behind, recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Failed, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.scripted_rehearsal import keep_plan
from support.simulated_driver import (
    STREAM,
    DriverKilledError,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import SimulatedPlan, SimulatedStartable


def everything(stream: SimulatedStream, below: str = "") -> dict[str, bytes]:
    found = {}
    for info in stream.checkpoints.list_objects(f"{STREAM}/{below}"):
        stored = stream.checkpoints.get(info.key)
        if stored is not None:
            found[info.key] = stored.body
    return found


def stopped(stream: SimulatedStream, plan: SimulatedPlan) -> StartPlan:
    """``d-0001`` has run and was stopped before it had read all; the start that continues from there."""
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    return StartPlan("restore", stream.events_of(Stopped)[0].snapshot_id, "d-0001")


def ends_well(stream: SimulatedStream, plan: SimulatedPlan, deployment_id: str, attempt: int) -> None:
    stream.order_at(30.0, DrainNotification, deployment_id, attempt=attempt)
    assert stream.run(waiting_script(plan), deployment_id, attempt) == 0
    assert_nothing_lost(plan)


def other_rule(plan: SimulatedPlan) -> SimulatedPlan:
    """What needs a drain: another watermark."""
    return replace(plan, delay_ms=5_000)


def recorded_as(stream: SimulatedStream, **changes: object) -> QueryPlan:
    """Have the plan of ``d-0001`` recorded with these changes."""
    old = recorded_plans(stream.control, "d-0001")["counts"]
    kept = replace(old, **changes)  # type: ignore[arg-type]
    keep_plan(stream.control, "d-0001", "counts", kept)
    return kept


def refused(stream: SimulatedStream, deployment_id: str) -> Failed:
    failed = stream.events_of(Failed, deployment_id)[-1]
    assert failed.refuses_start
    return failed


def test_a_deploy_by_another_rule_is_refused_each_time_and_the_version_before_goes_on_exactly(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """Law 17: nothing is built or recorded for it, so the second try meets the same state."""
    start = stopped(stream, plan)
    reads = list(plan.sources[0].reads)
    stream.deploy(2, start)
    for attempt in (1, 2):
        assert stream.run(waiting_script(other_rule(plan)), "d-0002", attempt) == 1
        failed = refused(stream, "d-0002")
        assert "delay" in failed.error
        assert f"streamstate rollback {STREAM}" in failed.next_step
        stream.next_attempt("d-0002")
    assert everything(stream, "deployments/d-0002/checkpoints/") == {}
    assert recorded_plans(stream.control, "d-0002") == {}
    assert plan.sources[0].reads == reads
    stream.deploy(3, StartPlan("restore", start.snapshot_id, "d-0002"))
    ends_well(stream, plan, "d-0003", 1)


def test_a_refused_attempt_followed_by_a_right_one_is_exact(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """Law 17: as after a file that the script reads was put back."""
    start = stopped(stream, plan)
    stream.deploy(2, start)
    assert stream.run(waiting_script(other_rule(plan)), "d-0002") == 1
    ends_well(stream, plan, "d-0002", stream.next_attempt("d-0002"))


@pytest.mark.parametrize("planned", [False, True])
def test_a_resume_by_another_rule_leaves_every_object_as_it_was(planned: bool) -> None:
    """Law 17: also where a batch is planned, or an entry of ours is in its log; then the right one continues."""
    stream, plan = SimulatedStream(), make_plan()
    stream.deploy()
    if planned:
        stream.clock.after(2.4, _die)
        assert stream.run(waiting_script(plan)) is None
    else:
        stopped(stream, plan)
    attempt = stream.next_attempt()
    before = everything(stream, "deployments/d-0001/checkpoints/")
    snapshots = everything(stream, "snapshots/")
    assert stream.run(waiting_script(other_rule(plan)), attempt=attempt) == 1
    failed = refused(stream, "d-0001")
    assert "Something else that the script reads has changed" in failed.next_step
    assert everything(stream, "deployments/d-0001/checkpoints/") == before
    assert everything(stream, "snapshots/") == snapshots
    ends_well(stream, plan, "d-0001", stream.next_attempt())


def _die() -> NoReturn:
    raise DriverKilledError


def test_a_kill_between_comparison_and_record_changes_nothing(
    stream: SimulatedStream, plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 17: the next attempt is compared with what made the state, as if this one had never been."""
    stream.deploy(2, stopped(stream, plan))
    with monkeypatch.context() as patched:
        patched.setattr(query_start, "record_before_start", lambda *_: _die())
        assert stream.run(waiting_script(plan), "d-0002") is None
    number = stream.next_attempt("d-0002")
    assert stream.run(waiting_script(other_rule(plan)), "d-0002", number) == 1
    assert refused(stream, "d-0002")
    ends_well(stream, plan, "d-0002", stream.next_attempt("d-0002"))


def test_a_plan_that_committed_nothing_has_made_no_state(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """Law 17: an accepted plan that died before its first batch is not what the next one is compared with alone."""
    start = stopped(stream, plan)
    recorded_as(stream, output_mode="complete")
    stream.deploy(2, replace(start, accept_hazards=True))
    stream.clock.after(0.3, _die)
    assert stream.run(waiting_script(plan), "d-0002") is None
    behind = plans_behind(stream.control, "d-0002", "counts", _last(stream))
    assert [each.deployment_id for each in behind] == ["d-0001", "d-0002"]
    assert behind[0].plan.output_mode == "complete"
    # The same plan continues by the consent that it had; another rule does not.
    number = stream.next_attempt("d-0002")
    assert stream.run(waiting_script(other_rule(plan)), "d-0002", number) == 1
    assert refused(stream, "d-0002")
    ends_well(stream, plan, "d-0002", stream.next_attempt("d-0002"))


def _last(stream: SimulatedStream) -> int:
    return int(stream.events_of(Stopped)[0].queries["counts"].batch_id or 0)


@pytest.mark.parametrize("by", ["nothing", "deploy", "attempt"])
def test_a_hazard_is_accepted_by_name_for_this_start(stream: SimulatedStream, plan: SimulatedPlan, by: str) -> None:
    """Law 17: of the deployment, or of the attempt; what it has committed is its own from then on."""
    start = stopped(stream, plan)
    recorded_as(stream, output_mode="complete")
    stream.deploy(2, replace(start, accept_hazards=by == "deploy"))
    stream.control.update_register(lambda seen: replace(seen, attempt_accepts_hazards=by == "attempt"), by="tests")
    stream.order_at(4.0, StopRequest, "d-0002")
    status = stream.run(waiting_script(plan), "d-0002")
    if by == "nothing":
        assert status == 1
        assert "--accept-hazards" in refused(stream, "d-0002").next_step
        return
    assert status == 0
    (remark,) = stream.events_of(QueryStarted, "d-0002")[0].remarks
    assert remark.startswith("an accepted hazard")
    ends_well(stream, plan, "d-0002", stream.next_attempt("d-0002"))


def test_an_accepted_plan_does_not_start_without_its_record(
    stream: SimulatedStream, plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 17: the next attempt would be compared with the earlier plan, and refused."""
    start = stopped(stream, plan)
    recorded_as(stream, output_mode="complete")
    stream.deploy(2, replace(start, accept_hazards=True))
    with monkeypatch.context() as patch:
        patch.setattr(query_start, "record_before_start", lambda *_: ("the home did not take it",))
        assert stream.run(waiting_script(plan), "d-0002") == 1
    assert "could not be recorded" in stream.events_of(Failed, "d-0002")[-1].error
    assert stream.events_of(QueryStarted, "d-0002") == []
    stream.control.update_register(lambda seen: replace(seen, attempt_accepts_hazards=True), by="tests")
    ends_well(stream, plan, "d-0002", stream.next_attempt("d-0002"))


def test_no_consent_helps_where_a_drain_is_needed(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """Law 17: as for an upgrade."""
    stream.deploy(2, replace(stopped(stream, plan), accept_hazards=True))
    assert stream.run(waiting_script(other_rule(plan)), "d-0002") == 1
    assert "--accept-hazards" not in refused(stream, "d-0002").next_step


def test_the_consent_of_a_deployment_is_not_one_for_its_later_attempts(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """Law 17: it was given for the state that the deployment started from."""
    stream.deploy(2, replace(stopped(stream, plan), accept_hazards=True))
    stream.order_at(4.0, StopRequest, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 0
    kept = replace(recorded_plans(stream.control, "d-0002")["counts"], output_mode="complete")
    keep_plan(stream.control, "d-0002", "counts", kept)
    assert stream.run(waiting_script(plan), "d-0002", stream.next_attempt("d-0002")) == 1
    assert "output mode" in refused(stream, "d-0002").error


def test_a_seed_continues_no_state(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """Any change is possible after a drain; the next attempt is compared with the plan that was seeded."""
    stream.order_at(2.1, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    stream.deploy(2, StartPlan("seed", stream.events_of(Drained)[0].snapshot_id, "d-0001"))
    stream.clock.after(0.3, _die)
    assert stream.run(waiting_script(other_rule(plan)), "d-0002") is None
    assert stream.run(waiting_script(plan), "d-0002", stream.next_attempt("d-0002")) == 1
    assert refused(stream, "d-0002")


def test_a_plan_that_cannot_be_read_is_no_known_one(
    stream: SimulatedStream, plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 17: where the plan behind the state is known; where it is not, it is a remark."""
    start = stopped(stream, plan)

    def fails(_: SimulatedStartable) -> NoReturn:
        raise ValueError("no JSON")

    monkeypatch.setattr(SimulatedStartable, "analyzed_plan", fails)
    stream.deploy(2, start)
    assert stream.run(waiting_script(plan), "d-0002") == 1
    assert "cannot be read: ValueError: no JSON" in refused(stream, "d-0002").error
    for info in list(stream.control.home.list_objects(layout.plans_prefix(STREAM, "d-0001"))):
        stream.control.home.delete(info.key)
    ends_well(stream, plan, "d-0002", stream.next_attempt("d-0002"))
    assert NOT_KNOWN in stream.events_of(QueryStarted, "d-0002")[0].remarks


@pytest.mark.parametrize("function", ["count", "max"])
def test_state_without_a_recorded_plan_is_compared_by_its_schema(
    stream: SimulatedStream, plan: SimulatedPlan, function: str
) -> None:
    """Law 17: as after an adoption. What the state keeps of each key reveals another function, until it is accepted."""
    start = stopped(stream, plan)
    texts = [
        json.dumps({"type": "struct", "fields": [{"name": name}]}, separators=(",", ":")) for name in ("at", function)
    ]
    body = b"".join(len(text).to_bytes(2, "big") + text.encode() for text in ("v2", *texts))
    for info in list(stream.control.home.list_objects(layout.plans_prefix(STREAM, "d-0001"))):
        stream.control.home.delete(info.key)
    folder = layout.checkpoint_folder(STREAM, "d-0001", "counts")
    stream.checkpoints.put(f"{folder}/state/0/0/_metadata/schema", body)
    stream.point_register("d-0001", 2, fencing_token=1)
    if function == "max":
        before = everything(stream, "deployments/d-0001/checkpoints/")
        assert stream.run(waiting_script(plan), attempt=2) == 1
        assert "the state keeps max" in refused(stream, "d-0001").error
        assert everything(stream, "deployments/d-0001/checkpoints/") == before
        return
    ends_well(stream, plan, "d-0001", 2)
    assert NOT_KNOWN in stream.events_of(QueryStarted)[-1].remarks
    assert start.snapshot_id


def test_a_release_that_writes_plans_down_otherwise_refuses_no_resume(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """Its script is pinned, and the start records the plan again; another script is not comparable until then."""
    start = stopped(stream, plan)
    old = recorded_plans(stream.control, "d-0001")["counts"]
    recorded_as(stream, reading=old.reading - 1)
    stream.deploy(2, start)
    assert stream.run(waiting_script(plan), "d-0002") == 1
    assert "written down" in refused(stream, "d-0002").error
    stream.point_register("d-0001", 2, fencing_token=1)
    stream.order_at(2.0, StopRequest, attempt=2)
    assert stream.run(waiting_script(plan), attempt=2) == 0
    assert recorded_plans(stream.control, "d-0001")["counts"].reading == old.reading


def test_two_queries_that_have_changed_names_are_refused(stream: SimulatedStream) -> None:
    """Law 17: each plan alone would fit the state of the other."""
    one, two = make_plan(), make_plan(window_ms=None)
    stream.order_at(2.1, StopRequest)
    names = ("one", "two")
    assert stream.run(waiting_script(one, two, names=names)) == 0
    stream.deploy(2, StartPlan("restore", stream.events_of(Stopped)[0].snapshot_id, "d-0001"))
    assert stream.run(waiting_script(two, one, names=names), "d-0002") == 1
    assert refused(stream, "d-0002")
