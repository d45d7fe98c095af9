"""When a new version has proven itself, as tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_streamstate.lifecycle.observation import Observation
from airflow_streamstate.lifecycle.upgrading.health import (
    Healthy,
    NotYet,
    Unhealthy,
    decide_health,
    has_begun,
    look_of,
)
from airflow_streamstate.protocol.events import Failed, Fenced, Finished
from airflow_streamstate.protocol.heartbeat import QueryBeat
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.upgrades import HealthyWhen
from support.sim_stage import Stage

WANTED = HealthyWhen(batches=2, within_seconds=100.0)


@pytest.fixture
def handover(stage: Stage) -> SnapshotManifest:
    """The end of a first version, whose query had committed batch 3; a second version is launched on it."""
    stage.deploy()
    stage.stopped(3)
    stage.deploy("print('v2')\n")
    return stage.control.need_manifest("d-0001-stopped-000001")


def seen(stage: Stage, batch_id: int | None = None, names: tuple[str, ...] = ("counts",), **beat: Any) -> Observation:
    """The second version, which has said this."""
    stage.come_to_life("d-0002", queries=names)
    beats = {name: QueryBeat(batch_id, stage.clock.now(), is_active=True, **beat) for name in names}
    stage.beat("d-0002", **beats)
    return stage.seen("d-0002")


def test_before_its_first_word_it_has_not_proven_itself(stage: Stage, handover: SnapshotManifest) -> None:
    """Nor is it given up before its time."""
    assert isinstance(decide_health(stage.seen("d-0002"), handover, WANTED, None, 0.0), NotYet)
    assert isinstance(decide_health(stage.seen("d-0002"), handover, WANTED, None, 100.0), Unhealthy)
    assert not has_begun(stage.seen("d-0002"), handover)


@pytest.mark.parametrize(
    ("batch_id", "beat", "begun", "verdict"),
    [
        (None, {}, False, NotYet),
        (3, {}, False, NotYet),  # the handover's own
        (4, {}, True, NotYet),
        (5, {}, True, Healthy),
        (3, {"idle_triggers": 1}, True, Healthy),  # no input
        (3, {"idle_triggers": 1, "rows_behind": 7}, False, NotYet),  # it says that there is some
        (2, {}, False, NotYet),  # of another time
    ],
)
def test_batches_past_the_handover_count(
    stage: Stage, handover: SnapshotManifest, batch_id: int | None, beat: dict[str, Any], *, begun: bool, verdict: type
) -> None:
    """Not batches as such: what it found committed is not its own work."""
    observation = seen(stage, batch_id, **beat)
    assert has_begun(observation, handover) is begun
    assert isinstance(decide_health(observation, handover, WANTED, {}, 10.0), verdict)


def test_every_query_of_the_handover_is_waited_for(stage: Stage, handover: SnapshotManifest) -> None:
    """As long as a script may still start it; then it is one that the new version leaves alone."""
    observation = seen(stage, 9, ("other",))
    found = decide_health(observation, handover, WANTED, {}, 10.0)
    assert found == NotYet("query counts is not started yet")
    stage.clock.advance(stage.spec("d-0002").settings.exit_grace_seconds + 1.0)
    stage.beat("d-0002", other=QueryBeat(9, stage.clock.now(), is_active=True))
    assert decide_health(stage.seen("d-0002"), handover, WANTED, {}, 10.0) == Healthy()


def test_a_query_that_says_nothing_is_waited_for(stage: Stage, handover: SnapshotManifest) -> None:
    """One that was started and is in no sign of life."""
    stage.come_to_life("d-0002", queries=("counts", "raw"))
    stage.beat("d-0002", counts=QueryBeat(9, None, is_active=True))
    assert decide_health(stage.seen("d-0002"), handover, WANTED, {}, 1.0) == NotYet("query raw has not run yet")


def test_a_sign_of_life_of_another_attempt_counts_for_nothing(stage: Stage, handover: SnapshotManifest) -> None:
    """It proves what ran then."""
    stage.come_to_life("d-0002", queries=("counts",))
    stage.beat("d-0002", attempt=2, counts=QueryBeat(9, None, is_active=True))
    assert isinstance(decide_health(stage.seen("d-0002"), handover, WANTED, {}, 1.0), NotYet)


@pytest.mark.parametrize(
    ("kind", "facts", "says"),
    [
        (Failed, {"error": "ValueError: boom", "traceback": ""}, "it is failed: ValueError: boom"),
        (Fenced, {"current_deployment_id": "d-0003", "current_attempt": 1}, "it is fenced"),
    ],
)
def test_what_has_ended_is_unhealthy_at_once(
    stage: Stage, handover: SnapshotManifest, kind: type, facts: dict[str, Any], says: str
) -> None:
    """Whatever it had committed before: its time is not waited for."""
    seen(stage, 9)
    stage.say(kind, "d-0002", **facts)
    stage.end("d-0002")
    found = decide_health(stage.seen("d-0002"), handover, WANTED, {}, 0.0)
    assert isinstance(found, Unhealthy)
    assert found.reason.startswith(says)


def test_a_script_that_reads_what_there_is_and_ends_is_healthy(stage: Stage, handover: SnapshotManifest) -> None:
    """By itself, and well."""
    seen(stage, 3)
    stage.say(Finished, "d-0002", snapshot_id=None, queries={})
    stage.end("d-0002")
    assert decide_health(stage.seen("d-0002"), handover, WANTED, None, 0.0) == Healthy()


def test_a_driver_that_vanishes_is_unhealthy(stage: Stage, handover: SnapshotManifest) -> None:
    """Without a last word."""
    seen(stage, 9)
    stage.end("d-0002", state="gone")
    assert isinstance(decide_health(stage.seen("d-0002"), handover, WANTED, {}, 0.0), Unhealthy)


@pytest.mark.parametrize(
    ("first", "later", "caught_up", "verdict"),
    [
        (100, 40, False, Healthy),
        (100, 100, False, Healthy),
        (100, 101, False, NotYet),
        (0, 0, False, Healthy),
        (100, 40, True, NotYet),
        (100, 0, True, Healthy),
        (None, 40, False, NotYet),  # asked for the first time
        (None, 0, False, Healthy),
    ],
)
def test_lag_may_not_grow(
    stage: Stage, handover: SnapshotManifest, first: int | None, later: int, *, caught_up: bool, verdict: type
) -> None:
    """From when it had begun; or nothing may be left, where that was asked for."""
    at = stage.clock.now()
    look = {} if first is None else {"counts": (first, int(at.timestamp() * 1_000))}
    stage.clock.advance(5.0)
    asked_at = at if first is None else at + timedelta(seconds=5)
    observation = seen(stage, 9, rows_behind=later, rows_behind_at=asked_at)
    if first is None:
        look = {"counts": (later, int(asked_at.timestamp() * 1_000))}
    wanted = HealthyWhen(2, 100.0, caught_up=caught_up)
    assert isinstance(decide_health(observation, handover, wanted, look, 10.0), verdict)
    assert isinstance(
        decide_health(observation, handover, wanted, look, 100.0), Healthy if verdict is Healthy else Unhealthy
    )


def test_what_nobody_can_count_says_nothing(stage: Stage, handover: SnapshotManifest) -> None:
    """A source that cannot be asked holds nobody up."""
    observation = seen(stage, 9)
    assert look_of(observation) == {}
    assert decide_health(observation, handover, WANTED, {}, 1.0) == Healthy()


def test_a_start_with_nothing_counts_from_nothing(stage: Stage, handover: SnapshotManifest) -> None:
    """Batch 1 is the second."""
    assert isinstance(decide_health(seen(stage, 0), None, WANTED, {}, 1.0), NotYet)
    stage.beat("d-0002", counts=QueryBeat(1, None, is_active=True))
    assert decide_health(stage.seen("d-0002"), None, WANTED, {}, 1.0) == Healthy()
