"""Plans that are recorded, and what a change would do to them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.scratch.rehearsal import RehearsalView
from airflow_streamstate.controller.scratch.run import LATE_SECONDS
from airflow_streamstate.errors import StreamNotFoundError, UnavailableError
from airflow_streamstate.launch.submit_options import KNOWN_BAD
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.report import PlanReport
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.scratch import RehearsedQuery, ScratchVerdict
from support.built_plans import plan, without_state
from support.scripted_rehearsal import keep_plan, with_an_aggregate_more
from support.sim_stage import STREAM, Stage


class Planned:
    """A stream whose queries ``counts`` and ``raw`` run."""

    def __init__(self, stage: Stage, *, has_plans: bool = True) -> None:
        self.stage = stage
        stage.deploy()
        stage.come_to_life(queries=("counts", "raw"))
        stage.run_batches(3)
        stage.run_batches(3, "raw")
        if has_plans:
            keep_plan(stage.control, "d-0001", "counts")
            keep_plan(stage.control, "d-0001", "raw", without_state())

    def begin(self, **more: Any) -> RehearsalView:
        return self.stage.controller.plans.begin(change_request(STREAM, self.stage.script("v2", "v2.py")), **more)

    def gives(self, view: RehearsalView, *names: str, **facts: Any) -> None:
        """The driver's verdict, with these queries accepted."""
        clock = self.stage.clock
        queries = {**dict.fromkeys(names, RehearsedQuery("accepted", "restored")), **facts.pop("queries", {})}
        values: dict[str, Any] = {"outcome": "done", "error": "", **facts}
        self.stage.control.create_verdict(
            ScratchVerdict(
                stream_id=STREAM, run_id=view.rehearsal_id, seconds=1.0, given_by="driver",
                queries=queries, given_at=clock.now(),
                write_id=clock.new_uuid(), **values,
            )
        )  # fmt: skip
        self.stage.launcher.states[launch_key_for(view.rehearsal_id, 1)] = "exited"

    def report(self, view: RehearsalView) -> PlanReport:
        return self.stage.controller.plans.report(STREAM, view.rehearsal_id)


def test_the_recorded_plans_are_shown(stage: Stage) -> None:
    """Of the current deployment; what runs without one is named."""
    Planned(stage)
    stage.start_query("older")
    found = stage.controller.plans.recorded(STREAM)
    assert (found.deployment_id, list(found.queries), found.unknown) == ("d-0001", ["counts", "raw"], ("older",))
    with pytest.raises(StreamNotFoundError):
        stage.controller.plans.recorded("nowhere")


def test_a_version_that_does_the_same_is_the_same(stage: Stage) -> None:
    """Query by query; and asked again, it is the same report."""
    planned = Planned(stage)
    view = planned.begin()
    keep_plan(stage.control, view.rehearsal_id, "counts")
    keep_plan(stage.control, view.rehearsal_id, "raw", without_state())
    planned.gives(view, "counts", "raw")
    found = planned.report(view)
    assert (found.outcome, found.verdict, list(found.queries)) == ("fits", "same", ["counts", "raw"])
    assert planned.report(view) == found


def test_a_query_less_and_a_changed_one_are_found(stage: Stage) -> None:
    """The plans are compared as wholes."""
    planned = Planned(stage)
    view = planned.begin()
    keep_plan(stage.control, view.rehearsal_id, "counts", with_an_aggregate_more())
    planned.gives(view, "counts")
    found = planned.report(view)
    assert (found.outcome, found.verdict) == ("refused", "needs-drain")
    assert found.queries["counts"].differences[0].code == "aggregate-added"
    assert [each.code for each in found.queries["raw"].differences] == ["query-dropped"]


@pytest.mark.parametrize(
    ("changed", "query", "outcome"),
    [
        (plan(), RehearsedQuery("accepted", "restored"), "tried, exact"),
        (plan(), RehearsedQuery("failed", "restored", error="no"), "does not fit (its rehearsal failed)"),
        (with_an_aggregate_more(), RehearsedQuery("accepted", "restored"), "does not fit (aggregate-added)"),
        (plan(), RehearsedQuery("accepted", "seeded"), ""),
    ],
)
def test_the_move_of_state_to_another_spark_is_told(
    stage: Stage, changed: QueryPlan, query: RehearsedQuery, outcome: str
) -> None:
    """Whether it was tried, in the store that the checkpoint pins; no state moves to a version that is seeded, and
    none of a query that keeps none."""
    planned = Planned(stage, has_plans=False)
    keep_plan(stage.control, "d-0001", "counts", plan(spark_version="4.0.5"))
    keep_plan(stage.control, "d-0001", "raw", without_state(spark_version="4.0.5"))
    view = planned.begin()
    keep_plan(stage.control, view.rehearsal_id, "counts", changed)
    keep_plan(stage.control, view.rehearsal_id, "raw", without_state())
    planned.gives(view, "raw", spark_version="4.2.0", queries={"counts": query})
    told = [note for note in planned.report(view).notes if "state of" in note]
    moved = "query counts: state of windowed aggregates in the HDFS-backed store, from Spark 4.0 to 4.2"
    assert told == ([f"{moved}: {outcome}"] if outcome else [])


def test_a_script_that_started_no_query_on_another_spark_is_told_of_all_its_state(stage: Stage) -> None:
    """What it would have continued."""
    planned = Planned(stage, has_plans=False)
    keep_plan(stage.control, "d-0001", "counts", plan(spark_version="4.0.5"))
    view = planned.begin()
    planned.gives(view, outcome="failed", error="ValueError: no", spark_version="4.2.0")
    told = "query counts: state of windowed aggregates in the HDFS-backed store, from Spark 4.0 to 4.2: tried, exact"
    assert planned.report(view).notes == (told,)


def test_state_that_is_rewritten_is_no_move_of_the_table(stage: Stage) -> None:
    """What was tried is state as the old Spark left it."""
    planned = Planned(stage, has_plans=False)
    keep_plan(stage.control, "d-0001", "counts", plan(spark_version="4.0.5"))
    request = change_request(STREAM, stage.script("v2", "v2.py"), partitions=7)
    view = stage.controller.plans.begin(request)
    planned.gives(view, spark_version="4.2.0")
    assert [note for note in planned.report(view).notes if "state of" in note] == []


def test_what_has_no_plan_cannot_be_compared_and_does_not_fit(stage: Stage) -> None:
    """A version whose plan was not recorded, or a plan that cannot be read."""
    planned = Planned(stage, has_plans=False)
    view = planned.begin()
    keep_plan(stage.control, view.rehearsal_id, "counts")
    planned.gives(view, "counts", "raw")
    found = planned.report(view)
    assert found.outcome == "refused"
    reasons = {name: query.differences[0].reason for name, query in found.queries.items()}
    assert "recorded no plan" in reasons["counts"]
    assert "cannot be read" in reasons["raw"]


def test_a_script_that_died_half_way_took_no_query_away(stage: Stage) -> None:
    """Nothing is reported about what was not reached."""
    planned = Planned(stage)
    view = planned.begin()
    keep_plan(stage.control, view.rehearsal_id, "counts")
    planned.gives(view, "counts", outcome="failed", error="ValueError: no")
    found = planned.report(view)
    assert (found.outcome, found.verdict, list(found.queries)) == ("failed", None, ["counts"])


def test_a_wait_ends_with_a_report_in_any_case(stage: Stage) -> None:
    """At the deadline at the latest (Law 6); in the meantime it reports how far the rehearsal is."""
    planned = Planned(stage)
    view, said = planned.begin(deadline_seconds=20), list[str]()
    found = stage.controller.plans.wait(view, said.append)
    assert found.outcome == "deadline"
    assert stage.clock.monotonic_seconds() <= 20 + LATE_SECONDS + 10
    assert said[0].startswith("its driver is running; 20 s are left")
    other = planned.begin(request_id="mine")
    keep_plan(stage.control, other.rehearsal_id, "counts")
    planned.gives(other, "counts")
    assert stage.controller.plans.wait(other).verdict == "state-compatible"  # raw held no state
    stage.controller.plans.give_up(STREAM, other.rehearsal_id)
    stage.controller.plans.sweep(STREAM)


def test_a_wait_outlives_a_store_that_is_away(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """That proves nothing about the rehearsal."""
    planned = Planned(stage)
    view = planned.begin()
    looks: list[bool] = []

    def is_over(_stream_id: str, _rehearsal_id: str) -> bool:
        looks.append(True)
        if len(looks) < 3:
            raise UnavailableError("the store does not answer")
        planned.gives(view)
        return True

    monkeypatch.setattr(stage.controller.plans, "is_over", is_over)
    assert stage.controller.plans.wait(view).outcome == "refused"  # it started no query
    assert len(looks) == 3


def test_a_release_that_is_known_to_fail_is_named(stage: Stage) -> None:
    """Of the version that runs, and of the one that is to follow it, which may bring another along."""
    connector = "org.apache.spark:spark-sql-kafka-0-10_2.13:"
    stage.deploy(packages=(f"{connector}4.1.1",))
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    keep_plan(stage.control, "d-0001", "counts")
    (note,) = stage.controller.plans.recorded(STREAM).notes
    assert f"4.1.1 ({connector}4.1.1): a query" in note
    for release, is_named in (("4.1.2", True), ("4.1.3", False)):
        change = change_request(STREAM, stage.script("v2", "v2.py"), packages=(f"{connector}{release}",))
        view = stage.controller.plans.begin(change, request_id=f"r-{release[-1]}")
        report = stage.controller.plans.report(STREAM, view.rehearsal_id)
        assert [note for note in report.notes if "SPARK-57438" in note] == (
            [f"Spark's Kafka connector {release} ({connector}{release}): {KNOWN_BAD[0].symptom}. {KNOWN_BAD[0].remedy}"]
            if is_named
            else []
        )
