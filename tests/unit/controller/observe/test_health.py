"""When a new version has proven itself, as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.controller.observe.health import (
    QUIET_SECONDS,
    Beats,
    CaughtUp,
    Healthy,
    NotYet,
    Unhealthy,
    beats_of,
    decide_caught_up,
    decide_health,
    has_begun,
    query_caught_up,
)
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.protocol.events import Drained, Failed, Fenced, Finished, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import LagTrend, QueryBeat, QueryPosition, SourceLag
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from support.sim_stage import Stage

WANTED = UpgradeTerms(healthy_batches=2, healthy_deadline_seconds=100.0)


@pytest.fixture
def handover(stage: Stage) -> SnapshotManifest:
    """The end of a first version, whose query had committed batch 3; a second version is launched on it."""
    stage.deploy()
    stage.stopped(3)
    stage.deploy("print('v2')\n")
    return stage.control.need_manifest("d-0001-stopped-000001")


def seen(stage: Stage, batch_id: int | None = None, names: tuple[str, ...] = ("counts",), **beat: Any) -> Observation:
    """The second version, which has reported this."""
    stage.come_to_life("d-0002", queries=names)
    beats = {name: QueryBeat(batch_id, stage.clock.now(), is_active=True, **beat) for name in names}
    stage.beat("d-0002", **beats)
    return stage.seen("d-0002")


def test_before_its_first_event_it_has_not_proven_itself(stage: Stage, handover: SnapshotManifest) -> None:
    """It is not abandoned before its time either."""
    none = "no query of it has run yet"
    assert decide_health(stage.seen("d-0002"), handover, WANTED, None, 99.9) == NotYet(none)
    late = Unhealthy(f"{none}, 100 s after its launch")
    assert decide_health(stage.seen("d-0002"), handover, WANTED, None, 100.0) == late
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
        (9, {"is_idle": True, "lags": (SourceLag("file /in", 7, "files"),)}, True, Healthy),  # by the newest trigger
        (2, {}, False, NotYet),  # before the handover
    ],
)
def test_batches_past_the_handover_count(
    stage: Stage, handover: SnapshotManifest, batch_id: int | None, beat: dict[str, Any], *, begun: bool, verdict: type
) -> None:
    """Batches that it found committed are not its own work."""
    observation = seen(stage, batch_id, **beat)
    assert has_begun(observation, handover) is begun
    assert isinstance(decide_health(observation, handover, WANTED, {}, 10.0), verdict)


@pytest.mark.parametrize(("batch_id", "verdict"), [(3, NotYet), (4, NotYet), (6, Healthy)])
def test_what_found_no_input_is_not_healthy_in_its_first_moment(
    stage: Stage, handover: SnapshotManifest, batch_id: int, verdict: type
) -> None:
    """A script that fails does so at its start; enough batches prove it before."""
    observation = seen(stage, batch_id, idle_triggers=1)
    assert isinstance(decide_health(observation, handover, WANTED, {}, QUIET_SECONDS / 2), verdict)
    assert decide_health(observation, handover, WANTED, {}, QUIET_SECONDS) == Healthy()


def test_every_query_of_the_handover_is_waited_for(stage: Stage, handover: SnapshotManifest) -> None:
    """As long as a script may still start it, or has started it and no heartbeat of this attempt has it."""
    observation = seen(stage, 9, ("other",))
    found = decide_health(observation, handover, WANTED, {}, 10.0)
    assert found == NotYet("query counts is not started yet")
    stage.clock.advance(stage.spec("d-0002").version.settings.exit_grace_seconds + 1.0)
    stage.beat("d-0002", other=QueryBeat(9, stage.clock.now(), is_active=True))
    assert decide_health(stage.seen("d-0002"), handover, WANTED, {}, 10.0) == Healthy()
    stage.start_query("raw", "d-0002")
    assert decide_health(stage.seen("d-0002"), handover, WANTED, {}, 1.0) == NotYet("query raw has not run yet")
    stage.beat("d-0002", attempt=2, other=QueryBeat(9, None, is_active=True))
    assert decide_health(stage.seen("d-0002"), handover, WANTED, {}, 1.0) == NotYet("no query of it has run yet")


@pytest.mark.parametrize(
    ("kind", "facts", "says"),
    [
        (None, {}, "it is failed: the driver has ended without a last event"),
        (Failed, {"error": "ValueError: boom", "traceback": ""}, "it is failed: ValueError: boom"),
        (Fenced, {"current_deployment_id": "d-0003", "current_attempt": 1}, "it is fenced"),
        (Stopped, {"snapshot_id": "s-1", "queries": {}}, "it is stopped"),
        (Drained, {"command_id": "c", "command_number": 1, "snapshot_id": "s-1", "queries": {}}, "it is drained"),
    ],
)
def test_what_has_ended_is_unhealthy_at_once(
    stage: Stage, handover: SnapshotManifest, kind: type | None, facts: dict[str, Any], says: str
) -> None:
    """Whatever it had committed before."""
    seen(stage, 9)
    if kind is not None:
        stage.say(kind, "d-0002", **facts)
    stage.end("d-0002")
    found = decide_health(stage.seen("d-0002"), handover, WANTED, {}, 0.0)
    assert isinstance(found, Unhealthy)
    assert found.reason.startswith(says)


def once_seen(
    stage: Stage, batch_id: int | None, *, trigger: str = "available_now", name: str = "counts", **beat: Any
) -> Observation:
    """The second version, whose query has a trigger that ends its run by itself; it has reported this."""
    stage.come_to_life("d-0002")
    stage.start_query(name, "d-0002", batch_id=3, trigger=trigger)
    stage.beat("d-0002", **{name: QueryBeat(batch_id, stage.clock.now(), **{"is_active": True, **beat})})
    return stage.seen("d-0002")


def finish(stage: Stage, batch_id: int | None = None, **unfinished: str) -> Observation:
    """The script ends with status 0."""
    queries = {} if batch_id is None else {"counts": QueryPosition(batch_id)}
    stage.say(Finished, "d-0002", snapshot_id=None, queries=queries, unfinished=unfinished)
    stage.end("d-0002")
    return stage.seen("d-0002")


@pytest.mark.parametrize("trigger", ["once", "available_now"])
@pytest.mark.parametrize("batch_id", [3, 4])
def test_a_run_that_has_come_to_its_end_is_healthy(
    stage: Stage, handover: SnapshotManifest, trigger: str, batch_id: int
) -> None:
    """However many batches it took: with none it has found no input."""
    once_seen(stage, 3, trigger=trigger)
    assert decide_health(finish(stage, batch_id), handover, WANTED, None, 0.0) == Healthy()


def test_a_version_whose_sources_are_read_to_their_end_is_healthy(stage: Stage, handover: SnapshotManifest) -> None:
    """It drains itself, perhaps before it had as many batches as were wanted; a drain by anybody else is no proof."""
    seen(stage, 4)
    said = {"command_id": "c", "command_number": 1, "snapshot_id": "s", "queries": {}}
    stage.say(Drained, "d-0002", **said, reason="self-drained: all 7 parts finished")
    stage.end("d-0002")
    assert decide_health(stage.seen("d-0002"), handover, WANTED, None, 0.0) == Healthy()
    assert decide_caught_up(stage.seen("d-0002")).is_so


@pytest.mark.parametrize("trigger", ["available_now", "processing_time"])
def test_a_version_whose_script_ends_before_its_input_is_unhealthy(
    stage: Stage, handover: SnapshotManifest, trigger: str
) -> None:
    """However many batches it had committed."""
    once_seen(stage, 9, trigger=trigger)
    found = decide_health(finish(stage, 9, counts="was stopped by the script"), handover, WANTED, None, 50.0)
    assert isinstance(found, Unhealthy)
    assert found.reason.endswith("query counts was stopped by the script")


def test_a_script_that_ends_before_a_batch_is_kept_with_a_warning(stage: Stage, handover: SnapshotManifest) -> None:
    """Where its trigger does not report that there was no input."""
    seen(stage, 3)
    warning = "query counts had committed no batch when its script ended"
    assert decide_health(finish(stage, 3), handover, WANTED, None, 0.0) == Healthy((warning,))


def test_a_script_that_ends_in_spite_of_a_failure_or_starts_nothing_is_unhealthy(
    stage: Stage, handover: SnapshotManifest
) -> None:
    """Status 0 alone proves nothing."""
    stage.come_to_life("d-0002")
    text = "it is finished, and its script has started no query"
    assert decide_health(finish(stage), handover, WANTED, None, 0.0) == Unhealthy(text)
    stage.start_query("counts", "d-0002", trigger="available_now")
    stage.query_failed(deployment_id="d-0002")
    found = decide_health(stage.seen("d-0002"), handover, WANTED, None, 0.0)
    assert isinstance(found, Unhealthy)
    assert found.reason.startswith("it is finished, and query counts had failed: Unlucky")


@pytest.mark.parametrize(("committed", "late"), [(3, Unhealthy), (4, Healthy), (9, Healthy)])
def test_a_run_that_ends_by_itself_is_waited_for(
    stage: Stage, handover: SnapshotManifest, committed: int, late: type
) -> None:
    """Beyond the batches that are wanted, too; at the deadline one batch is enough."""
    observation = once_seen(stage, committed)
    count = "1 batch" if committed == 4 else f"{committed - 3} batches"
    text = f"query counts has committed {count}, and its run has not ended yet"
    assert decide_health(observation, handover, WANTED, {}, 99.0) == NotYet(text)
    at_last = decide_health(observation, handover, WANTED, {}, 100.0)
    assert isinstance(at_last, late)
    assert at_last == (Healthy((text,)) if late is Healthy else Unhealthy(f"{text}, 100 s after its launch"))


def test_a_run_that_stands_still_or_is_to_catch_up_is_not_kept(stage: Stage, handover: SnapshotManifest) -> None:
    """At the deadline; its end would have been enough for both."""
    behind = {"lags": (SourceLag("file /in", 7, "files"),)}
    observation = once_seen(stage, 5, **behind)
    catching_up = replace(WANTED, caught_up=True)
    assert isinstance(decide_health(observation, handover, catching_up, {}, 100.0), Unhealthy)
    assert isinstance(decide_health(observation, handover, WANTED, {}, 100.0), Healthy)
    beats = stage.control.heartbeat("d-0002")
    assert beats is not None
    stage.clock.advance(60.0)
    stage.beat("d-0002", **beats.queries)
    found = decide_health(stage.seen("d-0002"), handover, WANTED, {}, 100.0)
    assert isinstance(found, Unhealthy)
    assert "it makes no progress: nothing was committed for 60 s" in found.reason
    ended = {name: replace(one, is_active=False, run_has_ended=True) for name, one in beats.queries.items()}
    stage.beat("d-0002", **ended)
    assert decide_health(stage.seen("d-0002"), handover, catching_up, {}, 100.0) == Healthy()
    assert decide_caught_up(stage.seen("d-0002")) == CaughtUp(True, "query counts: its run has ended by itself")


def test_a_script_whose_runs_have_ended_has_its_time_to_end_too(stage: Stage, handover: SnapshotManifest) -> None:
    """It may fail, or start its next query; after that it runs on for its own reason."""
    ended = once_seen(stage, 3, is_active=False, run_has_ended=True)
    text = "its queries have ended by themselves, and its script has not ended yet"
    assert has_begun(ended, handover)
    assert decide_health(ended, handover, WANTED, {}, 10.0) == NotYet(text)
    assert decide_health(ended, handover, WANTED, {}, 100.0) == Healthy((text,))
    stage.clock.advance(stage.spec("d-0002").version.settings.exit_grace_seconds + 1.0)
    assert ended.heartbeat is not None
    stage.beat("d-0002", **ended.heartbeat.queries)
    assert decide_health(stage.seen("d-0002"), handover, WANTED, {}, 50.0) == Healthy()


def test_a_script_that_starts_its_run_again_and_again_is_healthy(stage: Stage, handover: SnapshotManifest) -> None:
    """The second start reports that the first run has ended, unless that had failed."""
    once_seen(stage, 3)
    stage.query_failed(deployment_id="d-0002")
    stage.start_query("counts", "d-0002", trigger="available_now")
    assert isinstance(decide_health(stage.seen("d-0002"), handover, WANTED, {}, 10.0), NotYet)
    stage.start_query("counts", "d-0002", trigger="available_now")
    assert decide_health(stage.seen("d-0002"), handover, WANTED, {}, 10.0) == Healthy()


def test_a_run_that_has_ended_beside_a_query_that_runs_needs_no_batches(
    stage: Stage, handover: SnapshotManifest
) -> None:
    """The others are judged as ever."""
    once_seen(stage, 3, is_active=False, run_has_ended=True, lags=(SourceLag("file /in", 7, "files"),))
    beat = stage.control.heartbeat("d-0002")
    assert beat is not None
    stage.start_query("steady", "d-0002")
    for committed, verdict in ((0, NotYet("query steady has committed 1 of 2 batches")), (1, Healthy())):
        stage.beat("d-0002", **beat.queries, steady=QueryBeat(committed, stage.clock.now(), is_active=True))
        assert decide_health(stage.seen("d-0002"), handover, WANTED, {}, 10.0) == verdict


def rate(per_second: float | None) -> tuple[int | None, float | None]:
    """A count and its seconds, as in a trend."""
    return (None, None) if per_second is None else (round(per_second * 100), 100.0)


def lag(
    behind: int | None,
    unit: str = "rows",
    *,
    came: float | None = 10.0,
    read: float | None = 10.0,
    least: tuple[int, int] = (20, 20),
) -> SourceLag:
    """A lag with a trend of these rates per second."""
    trend = LagTrend(10, *rate(read), *rate(came), *least, least[1])
    return SourceLag("a source", behind, unit, trend=trend, untold="" if behind is not None else "it did not answer")


def beat(*lags: SourceLag, **fields: Any) -> QueryBeat:
    return QueryBeat(9, None, is_active=True, lags=lags, **fields)


GROWS = (20, 500)
OLD = {"counts": beat(lag(90))}
"""The version before: it read what came, 10 rows/s, with a smallest lag of 20 rows."""


def judged(
    stage: Stage,
    handover: SnapshotManifest,
    *lags: SourceLag,
    old: Beats | None = None,
    wanted: UpgradeTerms = WANTED,
    is_late: bool = False,
    batch_id: int = 9,
    still_seconds: float = 0.0,
    **fields: Any,
) -> Any:
    """The verdict on a version with these lags."""
    stage.come_to_life("d-0002", queries=("counts",))
    committed_at = stage.clock.now()
    stage.clock.advance(still_seconds)
    query = QueryBeat(batch_id, committed_at, is_active=True, lags=lags, lags_at=committed_at, **fields)
    stage.beat("d-0002", counts=query)
    waited_seconds = wanted.healthy_deadline_seconds if is_late else 10.0
    return decide_health(stage.seen("d-0002"), handover, wanted, old, waited_seconds)


@pytest.mark.parametrize(
    "lags",
    [
        [lag(900, least=(3, 60))],  # the first sample was low by chance: what came was read
        [lag(900, came=10.9, least=GROWS)],  # nor by a tenth
        [lag(900, came=40.0, read=38.0, least=GROWS)],  # a burst: it reads more than the one before ever did
        [lag(900, came=40.0, read=9.5, least=GROWS)],  # as much, within what is noise
        [lag(900, came=40.0, read=5.0, least=(700, 500))],  # it catches up
        [lag(900, came=40.0, read=5.0, least=(9, 18))],  # no more is left than the version before had
        [lag(0, came=40.0, read=5.0, least=GROWS)],  # it has read what there is
        [lag(900, read=None, came=None, least=(30, 30))],
        [lag(None)],
        [
            lag(9, came=30.0, read=5.0, least=GROWS),
            lag(9, came=1.0, read=30.0, least=(9, 0)),
        ],  # of one unit, they are one
    ],
)
def test_no_single_sample_makes_a_good_version_fail(
    stage: Stage, handover: SnapshotManifest, lags: list[SourceLag]
) -> None:
    """A version that keeps up with its input, or is no slower than the one before, is healthy at once, also with
    ``roll_back_if_slower``."""
    wanted = replace(WANTED, roll_back_if_slower=1.1)
    assert judged(stage, handover, *lags, old=OLD, wanted=wanted) == Healthy()


SLOW = lag(900, came=10.0, read=4.0, least=GROWS)
SLOW_IN_WORDS = (
    "query counts falls behind: it reads 4 rows/s while 10 rows/s arrive, and the version before read 10 rows/s; "
    "500 rows behind at the least, 20 before"
)


@pytest.mark.parametrize(("factor", "is_kept"), [(None, True), (2.6, True), (2.5, False), (1.1, False)])
def test_a_version_that_is_only_slower_is_kept_unless_its_factor_was_asked_for(
    stage: Stage, handover: SnapshotManifest, factor: float | None, *, is_kept: bool
) -> None:
    """At the end of its time, with both rates."""
    wanted = replace(WANTED, roll_back_if_slower=factor)
    assert judged(stage, handover, SLOW, old=OLD, wanted=wanted) == NotYet(SLOW_IN_WORDS)
    found = decide_health(stage.seen("d-0002"), handover, wanted, OLD, 100.0)
    late = Unhealthy(f"{SLOW_IN_WORDS}, 100 s after its launch")
    assert found == (Healthy((SLOW_IN_WORDS,)) if is_kept else late)


@pytest.mark.parametrize(
    ("slow", "old", "says"),
    [
        (SLOW, None, "the version before read an unknown number of rows/s"),
        (SLOW, {"counts": beat(lag(900, "files"))}, "the version before read an unknown number of rows/s"),
        (SLOW, {"other": beat(lag(900))}, "the version before read an unknown number of rows/s"),
        (lag(900, came=None, read=None, least=GROWS), OLD, "reads an unknown number of rows/s"),
        (lag(900, came=10.0, read=0.0, least=GROWS), OLD, "reads 0 rows/s while 10 rows/s arrive"),
        (SourceLag("a source", 40, "files"), OLD, "40 files behind, and was not looked at long enough to know whether"),
    ],
)
def test_an_unknown_rate_rolls_nothing_back(
    stage: Stage, handover: SnapshotManifest, slow: SourceLag, old: Beats | None, says: str
) -> None:
    """It becomes a warning at the end; the factor applies to known rates only."""
    wanted = replace(WANTED, roll_back_if_slower=2.0)
    assert isinstance(judged(stage, handover, slow, old=old, wanted=wanted), NotYet)
    found = decide_health(stage.seen("d-0002"), handover, wanted, old, 100.0)
    is_known = "reads 0 rows/s" in says
    assert isinstance(found, Unhealthy if is_known else Healthy)
    assert says in words(found)


def words(found: Any) -> str:
    return found.reason if isinstance(found, Unhealthy) else found.warnings[0]


@pytest.mark.parametrize(
    ("committed", "still_seconds", "fields", "old", "is_kept"),
    [
        (0, 0.0, {}, OLD, False),  # nothing at all
        (1, 49.0, {"lags": [lag(30)]}, OLD, True),
        (1, 50.0, {"lags": [lag(30)]}, OLD, False),
        (1, 50.0, {}, OLD, False),  # whether input waits is unknown; it has never found none
        (1, 90.0, {"lags": [lag(0)]}, OLD, True),  # there was none to commit
        (1, 90.0, {"is_idle": True}, OLD, True),
        (1, 90.0, {"lags": [lag(30)], "batch_seconds": 31.0}, OLD, True),  # a batch of it takes as long
        (1, 90.0, {"lags": [lag(30)]}, {"counts": beat(lag(30), batch_seconds=31.0)}, True),  # one of the old one did
        (1, 90.0, {"lags": [lag(30)]}, {"counts": beat(lag(30), batch_seconds=29.0)}, False),
        (5, 50.0, {"lags": [SLOW]}, OLD, False),  # slower, and by now it does nothing
        (5, 49.0, {"lags": [SLOW]}, OLD, True),
        (1, 49.0, {"lags": [SLOW]}, OLD, True),  # the duration of its batches is unknown
    ],
)
def test_a_version_that_stands_still_is_given_up_and_a_slow_one_is_not(
    stage: Stage,
    handover: SnapshotManifest,
    committed: int,
    still_seconds: float,
    fields: dict[str, Any],
    old: Beats,
    *,
    is_kept: bool,
) -> None:
    """Standing still: no batch at all, or none for half of its time and three batches, although input waits."""
    facts = {"lags": [], **fields, "batch_id": 3 + committed, "still_seconds": still_seconds}
    found = judged(stage, handover, *facts.pop("lags"), old=old, is_late=True, **facts)
    assert isinstance(found, Healthy if is_kept else Unhealthy), found


def test_a_query_whose_last_commit_has_no_time_is_not_said_to_stand_still(
    stage: Stage, handover: SnapshotManifest
) -> None:
    """Nothing shows for how long it has committed nothing."""
    stage.come_to_life("d-0002", queries=("counts",))
    stage.beat("d-0002", counts=QueryBeat(4, None, is_active=True))
    found = decide_health(stage.seen("d-0002"), handover, WANTED, None, 100.0)
    assert found == Healthy(("query counts has committed 1 of 2 batches",))


def test_few_batches_are_told_with_the_time_that_each_takes(stage: Stage, handover: SnapshotManifest) -> None:
    """For both versions; without rates, the factor applies to these times."""
    old = {"counts": beat(batch_seconds=10.0)}
    found = judged(stage, handover, lag(0), old=old, is_late=True, batch_id=4, batch_seconds=40.0)
    says = "query counts has committed 1 of 2 batches: one in 40 s, and the version before one in 10 s"
    assert found == Healthy((says,))  # nothing is left: a trigger with that interval, perhaps
    for factor, kept in ((4.1, True), (4.0, False)):
        stage.beat("d-0002", counts=QueryBeat(
            4, stage.clock.now(), is_active=True, lags=(SourceLag("file /in", 40, "files"),), batch_seconds=40.0,
        ))  # fmt: skip
        wanted = replace(WANTED, roll_back_if_slower=factor)
        found = decide_health(stage.seen("d-0002"), handover, wanted, old, 100.0)
        assert isinstance(found, Healthy if kept else Unhealthy)
        assert says in words(found)


CAUGHT_UP = UpgradeTerms(healthy_batches=2, healthy_deadline_seconds=100.0, caught_up=True)


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"lags": (lag(40, "files"),)}, NotYet),
        ({"lags": (lag(0, "files"),)}, Healthy),
        ({"lags": (lag(0, "files"), lag(None))}, NotYet),
        ({"lags": (lag(0, "files"), lag(None)), "is_idle": True}, Healthy),
        ({}, NotYet),
        ({"lags": (lag(900, least=(500, 20)),)}, Healthy),  # as little as the version before had
        ({"lags": (lag(900, least=(500, 21)),)}, NotYet),
        ({"lags": (lag(900, least=(500, 0)),)}, Healthy),
        ({"lags": (lag(900, least=(500, 10)), lag(900, least=(500, 10)))}, Healthy),
        ({"lags": (lag(900, least=(500, 10)), lag(900, least=(500, 11)))}, NotYet),  # of one unit, they are one
        ({"lags": (lag(900, least=(500, 10)), lag(9, "files", least=(5, 1)))}, NotYet),  # it had no files left
    ],
)
def test_caught_up_is_what_it_is_everywhere(
    stage: Stage, handover: SnapshotManifest, fields: dict[str, Any], verdict: type
) -> None:
    """Nothing left in any unit, or no input found, or no larger lag than before; an unknown lag is never a yes."""
    observation = seen(stage, 9, **fields)
    found = decide_health(observation, handover, CAUGHT_UP, OLD, 10.0)
    assert isinstance(found, verdict)
    if isinstance(found, NotYet):
        assert query_caught_up(beats_of(observation)["counts"]).why in found.text
        assert isinstance(decide_health(observation, handover, CAUGHT_UP, OLD, 100.0), Unhealthy)


def test_a_start_with_nothing_counts_from_nothing(stage: Stage, handover: SnapshotManifest) -> None:
    """Batch 1 is the second."""
    assert isinstance(decide_health(seen(stage, 0), None, WANTED, {}, 1.0), NotYet)
    stage.beat("d-0002", counts=QueryBeat(1, None, is_active=True))
    assert decide_health(stage.seen("d-0002"), None, WANTED, {}, 1.0) == Healthy()


def test_the_planned_batch_of_the_handover_is_none_of_the_new_version_s_own(
    stage: Stage, handover: SnapshotManifest
) -> None:
    """Every start runs it, whatever the new code can do."""
    counts = handover.queries["counts"]
    planned = replace(counts, position=replace(counts.position, planned_batch_id=4))
    handover = replace(handover, queries={"counts": planned})
    observed = seen(stage, 4)
    assert not has_begun(observed, handover)
    stage.beat("d-0002", counts=QueryBeat(6, stage.clock.now(), is_active=True))
    assert isinstance(decide_health(stage.seen("d-0002"), handover, WANTED, None, 0.0), Healthy)


@pytest.mark.parametrize("state", ["running", "unknown"])
def test_a_version_with_a_failed_query_is_not_healthy(stage: Stage, handover: SnapshotManifest, state: Any) -> None:
    """Whatever the other queries do, also where the driver cannot be asked; the reason names query and cause."""
    seen(stage, 9)
    stage.query_failed("counts", deployment_id="d-0002")
    stage.end("d-0002", state=state)
    verdict = decide_health(stage.seen("d-0002"), handover, WANTED, None, 0.0)
    assert verdict == Unhealthy("it is degraded: query counts has failed in batch 7: Unlucky: batch of bad luck")


def test_a_version_that_is_lost_is_neither_healthy_nor_given_up_before_its_time(
    stage: Stage, handover: SnapshotManifest
) -> None:
    """It may come back; has_begun does not count its earlier heartbeats."""
    seen(stage, 9)
    stage.end("d-0002", state="unknown")
    stage.clock.advance(3_600)
    observed = stage.seen("d-0002")
    assert decide_health(observed, handover, WANTED, OLD, 10.0) == NotYet("it is lost")
    assert decide_health(observed, handover, WANTED, OLD, 100.0) == Unhealthy("it is lost, 100 s after its launch")
    assert not has_begun(observed, handover)


def test_a_version_that_has_committed_nothing_is_told_as_that_alone(stage: Stage, handover: SnapshotManifest) -> None:
    """Without the clause about a standstill."""
    found = judged(stage, handover, lag(30), old=OLD, is_late=True, batch_id=3, still_seconds=90.0)
    assert found == Unhealthy("query counts has committed 0 of 2 batches, 100 s after its launch")


@pytest.mark.parametrize(
    ("first_seconds", "since_seconds", "old_seconds", "factor", "verdict"),
    [
        (60.0, 30.0, 1.0, 2.0, Unhealthy),  # the first batch took most of the time
        (5.0, 40.0, 1.0, 2.0, Unhealthy),  # the second one hangs
        (5.0, 40.0, 21.0, 2.0, Healthy),  # and the old one's took as long
        (60.0, 30.0, 1.0, None, Healthy),  # no factor was asked for
        (20.0, 1.0, 1.0, 2.0, Healthy),  # a first batch opens the state, and has all that came in the meantime
    ],
)
def test_one_batch_tells_how_long_a_batch_takes_at_the_least(
    stage: Stage,
    handover: SnapshotManifest,
    first_seconds: float,
    since_seconds: float,
    old_seconds: float,
    factor: float | None,
    verdict: type,
) -> None:
    """A version that is slower, or hangs, may have no second commit in its time."""
    stage.come_to_life("d-0002", queries=("counts",))
    stage.clock.advance(first_seconds)
    committed_at = stage.clock.now()
    stage.clock.advance(since_seconds)
    lags = (SourceLag("kafka t", 50_000, "rows"),)
    stage.beat("d-0002", counts=QueryBeat(4, committed_at, is_active=True, lags=lags, lags_at=committed_at))
    old = {"counts": beat(lag(90), batch_seconds=old_seconds)}
    wanted = replace(WANTED, roll_back_if_slower=factor)
    found = decide_health(stage.seen("d-0002"), handover, wanted, old, 100.0)
    assert isinstance(found, verdict), found
    least = first_seconds if first_seconds >= 50 else since_seconds
    says = f"has committed 1 of 2 batches: one in at least {least:g} s, and the version before one in"
    assert says in words(found)
