"""When a new version has proven itself, as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.lifecycle.observing.caught_up import decide_caught_up
from airflow_streamstate.lifecycle.observing.health import (
    Healthy,
    NotYet,
    Unhealthy,
    beats_of,
    decide_health,
    has_begun,
)
from airflow_streamstate.lifecycle.observing.observation import Observation
from airflow_streamstate.protocol.events import Failed, Fenced, Finished
from airflow_streamstate.protocol.heartbeat import QueryBeat, SourceLag
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
        (3, {"idle_triggers": 1, "lags": (SourceLag("file /in", 7, "files"),)}, False, NotYet),  # there is some
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


def files(count: int | None) -> SourceLag:
    return SourceLag("file /in", count, "files", untold="" if count is not None else "it did not answer")


def rows(count: int | None) -> SourceLag:
    return SourceLag("kafka flights", count, "rows", untold="" if count is not None else "it did not answer")


@pytest.mark.parametrize(
    ("first", "later", "missing"),
    [
        ([files(100)], [files(40)], ""),
        ([files(100)], [files(100)], ""),
        ([files(100)], [files(101)], "it falls behind: query counts was 100 files behind, and is 101"),
        ([files(0)], [files(0)], ""),
        ([files(9), rows(5)], [files(0), rows(6)], "it falls behind: query counts was 5 rows behind, and is 6"),
        ([rows(9), rows(5)], [rows(0), rows(6)], ""),  # of one unit, they are one
        ([rows(None), rows(5)], [rows(900), rows(5)], ""),  # nobody knows what the first one had
        ([], [files(40)], ""),
    ],
)
def test_what_is_left_may_not_grow(
    stage: Stage, handover: SnapshotManifest, first: list[SourceLag], later: list[SourceLag], missing: str
) -> None:
    """From when it had begun, in the unit of each source."""
    first_beats = beats_of(seen(stage, 4, lags=tuple(first), lags_at=stage.clock.now()))
    stage.clock.advance(5.0)
    now = stage.clock.now()
    stage.beat("d-0002", counts=QueryBeat(9, now, is_active=True, lags=tuple(later), lags_at=now))
    observation = stage.seen("d-0002")
    found = decide_health(observation, handover, WANTED, first_beats, 10.0)
    assert found == (NotYet(missing) if missing else Healthy())
    assert isinstance(
        decide_health(observation, handover, WANTED, first_beats, 100.0), Unhealthy if missing else Healthy
    )


def test_one_look_at_what_is_left_says_not_whether_it_grows(stage: Stage, handover: SnapshotManifest) -> None:
    """The sources have to have been asked once more, or a trigger to have found no input."""
    lags: dict[str, Any] = {"lags": (files(40),), "lags_at": stage.clock.now()}
    observation = seen(stage, 9, **lags)
    found = decide_health(observation, handover, WANTED, beats_of(observation), 10.0)
    assert found == NotYet("query counts is 40 files behind, and was asked only once")
    stage.beat("d-0002", counts=QueryBeat(9, stage.clock.now(), is_active=True, is_idle=True, **lags))
    idle = stage.seen("d-0002")
    assert decide_health(idle, handover, WANTED, beats_of(idle), 10.0) == Healthy()


@pytest.mark.parametrize(
    ("beat", "verdict"),
    [
        ({"lags": (files(40),)}, NotYet),
        ({"lags": (files(0),)}, Healthy),
        ({"lags": (files(0), rows(None))}, NotYet),
        ({"lags": (files(0), rows(None)), "is_idle": True}, Healthy),
        ({}, NotYet),
        ({"rows_behind": 40}, NotYet),  # said by a driver that counts rows alone
        ({"rows_behind": 0}, Healthy),
    ],
)
def test_caught_up_is_what_it_is_everywhere(
    stage: Stage, handover: SnapshotManifest, beat: dict[str, Any], verdict: type
) -> None:
    """Nothing left in any unit, or no input found; what nobody can tell is never a yes, and is said."""
    observation = seen(stage, 9, **beat)
    wanted = HealthyWhen(2, 100.0, caught_up=True)
    found = decide_health(observation, handover, wanted, {}, 10.0)
    assert isinstance(found, verdict)
    if isinstance(found, NotYet):
        assert decide_caught_up(observation).why in found.text


def test_what_nobody_can_count_says_nothing(stage: Stage, handover: SnapshotManifest) -> None:
    """A source that cannot be asked holds nobody up who did not ask for more."""
    observation = seen(stage, 9, lags=(rows(None),), lags_at=stage.clock.now())
    assert decide_health(observation, handover, WANTED, beats_of(observation), 1.0) == Healthy()


def test_a_start_with_nothing_counts_from_nothing(stage: Stage, handover: SnapshotManifest) -> None:
    """Batch 1 is the second."""
    assert isinstance(decide_health(seen(stage, 0), None, WANTED, {}, 1.0), NotYet)
    stage.beat("d-0002", counts=QueryBeat(1, None, is_active=True))
    assert decide_health(stage.seen("d-0002"), None, WANTED, {}, 1.0) == Healthy()


def test_the_planned_batch_of_the_handover_is_none_of_the_new_version_s_own(
    stage: Stage, handover: SnapshotManifest
) -> None:
    """Its start runs that whatever the new code can do: it has begun behind it."""
    counts = handover.queries["counts"]
    planned = replace(counts, position=replace(counts.position, planned_batch_id=4))
    handover = replace(handover, queries={"counts": planned})
    observed = seen(stage, 4)
    assert not has_begun(observed, handover)
    stage.beat("d-0002", counts=QueryBeat(6, stage.clock.now(), is_active=True))
    assert isinstance(decide_health(stage.seen("d-0002"), handover, WANTED, None, 0.0), Healthy)


def test_a_version_with_a_failed_query_is_not_healthy(stage: Stage, handover: SnapshotManifest) -> None:
    """Whatever the other queries do; the reason names query and cause."""
    seen(stage, 9)
    stage.query_failed("counts", deployment_id="d-0002")
    verdict = decide_health(stage.seen("d-0002"), handover, WANTED, None, 0.0)
    assert verdict == Unhealthy("it is degraded: query counts has failed in batch 7: Unlucky: batch of bad luck")
