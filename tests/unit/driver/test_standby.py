"""The second pass of a script, with simulated queries: it waits, and becomes an attempt, or ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.connectors.sink import HeldBatches
from airflow_streamstate.control.objects import Bell
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.driver.agent.agent import AttemptLife
from airflow_streamstate.driver.attempt.attempt import InBackground
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.rehearsal.committed_batches import RehearsedAttempt
from airflow_streamstate.driver.rehearsal.warming import WARM_BATCHES
from airflow_streamstate.driver.shutdown.script_end import FENCED_STATUS, ScriptFailure
from airflow_streamstate.driver.standby import (
    ASK_AGAIN_SECONDS,
    LOOK_SECONDS,
    POLL_SECONDS_ON_DISK,
    SHARE_ON_S3,
    WARM_AGAIN_SECONDS,
    WaitingDriver,
)
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Claimed, Noted, QueryStarted, Started, Stopped
from airflow_streamstate.protocol.ids import launch_key_for, scratch_id_for, upgrade_id_for
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.scratch import Handover, Rehearsal, ScratchRun
from airflow_streamstate.protocol.settings import COMMAND_POLL_SECONDS_ON_S3, AgentSettings
from airflow_streamstate.protocol.terms.order import RehearsalTerms
from airflow_streamstate.protocol.upgrades import Phase, Upgrade, UpgradeStep
from airflow_streamstate.store.memory import MemoryStore
from support.examples import example
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.recorded_specs import with_version
from support.simulated_driver import (
    STREAM,
    ProcessEndedError,
    SimulatedStream,
    do_at_once,
    make_plan,
    never_do,
    waiting_script,
)
from support.simulated_query import SimulatedPlan, SimulatedStartable

REHEARSAL = scratch_id_for("request", 1)
BROKEN = ScriptFailure("ValueError: no customers", "", 3)


def _end(status: int) -> None:
    raise ProcessEndedError(status)


def _is_so(what: bool) -> None:
    assert what


class _Asked(SimulatedStartable):
    """Records each question about what its sink holds."""

    before_asking: Callable[[], object]

    def held_batches(self, query_id: str | None, from_batch_id: int) -> HeldBatches:
        self.before_asking()
        return super().held_batches(query_id, from_batch_id)


@dataclass
class Wait:
    """A driver whose second pass starts now, and waits for 100 seconds by default."""

    stream: SimulatedStream = field(default_factory=SimulatedStream)
    plan: SimulatedPlan = field(default_factory=make_plan)
    control: Any = None
    in_background: InBackground = do_at_once
    waits_seconds: float = 100
    request_id: str = "request"
    batches: int = 1
    bell: Bell | None = None

    def __post_init__(self) -> None:
        clock = self.stream.clock
        self.stream.deploy()
        self.stream.order_at(2.1, StopRequest)
        assert self.stream.run(waiting_script(self.plan)) == 0
        snapshot_id = self.stream.events_of(Stopped)[0].snapshot_id
        self.start_plan = StartPlan("restore", snapshot_id, "d-0001", allow_new_queries=("more", "query-1"))
        settings = AgentSettings(command_poll_seconds=COMMAND_POLL_SECONDS_ON_S3)
        spec = replace(
            with_version(self.stream.control.spec("d-0001"), settings=settings),
            deployment_id=REHEARSAL,
            start=self.start_plan,
        )
        attempt = RehearsedAttempt(
            self.control or self.stream.control, self.stream.checkpoints, spec, 1, clock, lambda key: key,
            self.stream.said.append, self.in_background,
        )  # fmt: skip
        until = clock.now() + timedelta(seconds=self.waits_seconds)
        what = Rehearsal(RehearsalTerms(True, self.batches, 1_000), waits_until=until)
        run = ScratchRun(
            STREAM, REHEARSAL, "d-0001", what, clock.now(), clock.now() + timedelta(seconds=50), "tests",
            self.request_id, "0" * 64, "w",
        )  # fmt: skip
        self.became: list[AttemptLife] = []
        self.driver = WaitingDriver(attempt, run, self.become, _end, self.bell)
        self.driver.session_started("4.2.0", "local-2", ["the script sets its own master"])

    def become(self, handover: Handover) -> AttemptLife:
        """What the runner does."""
        control = self.stream.control
        spec = control.spec(handover.deployment_id)
        attempt_life = AttemptLife(
            control, self.stream.checkpoints, spec, handover.attempt, self.stream.clock, lambda key: key,
            self.stream.said.append, do_at_once,
        )  # fmt: skip
        attempt_life.claim(handover.launch_key, "host", 4711)
        self.became.append(attempt_life)
        return attempt_life

    def hand_over(self, attempt: int = 1) -> None:
        """Make it this attempt of the second deployment."""
        clock = self.stream.clock
        self.stream.control.create_handover(
            Handover(
                STREAM, REHEARSAL, "d-0002", attempt, launch_key_for("d-0002", attempt), clock.now(), clock.new_uuid()
            )
        )

    def follows(self) -> None:
        """The second deployment is current from now on, and this driver is its first attempt."""
        self.stream.deploy(2, self.start_plan)
        self.hand_over()

    def start(self, name: str | None = "counts", plan: SimulatedPlan | None = None) -> LogicalQuery:
        """The script's ``start()``."""
        return self.driver.start_query(name, None, self.startable(plan))

    def ended_with(self) -> int:
        """The status with which the process ended in the script's first ``start()``."""
        with pytest.raises(ProcessEndedError) as ended:
            self.start()
        return ended.value.status

    def control_waits(self) -> bool:
        """Whether it was reported that this driver waits."""
        return self.stream.control.waiting(REHEARSAL) is not None

    def startable(self, plan: SimulatedPlan | None = None) -> SimulatedStartable:
        """The script's writer."""
        return SimulatedStartable(self.stream.checkpoints, self.stream.clock, plan or self.plan)


@pytest.fixture
def wait() -> Wait:
    """A driver that waits."""
    return Wait()


@pytest.mark.parametrize("name", ["counts", None])
def test_the_first_start_waits_and_then_goes_on_as_a_cold_one(wait: Wait, name: str | None) -> None:
    """Nothing is claimed before; then the query gets its checkpoint from the old one's last snapshot."""
    clock, control = wait.stream.clock, wait.stream.control
    begun = clock.monotonic_seconds()

    def after_a_while() -> None:
        waiting = control.waiting(REHEARSAL)
        assert waiting is not None
        assert waiting.query_name == (name or "")
        assert wait.became == []
        wait.follows()

    clock.after(7.0, after_a_while)
    query = wait.start(name, wait.plan if name else make_plan())
    assert clock.monotonic_seconds() - begun == pytest.approx(7.0, abs=2 * POLL_SECONDS_ON_DISK)
    assert wait.stream.kinds("d-0002") == ["Claimed", "Started", "QueryStarted"]
    assert wait.stream.events_of(Started, "d-0002")[0].application_id == "local-2"
    assert "the script sets its own master" in [note.text for note in wait.stream.events_of(Noted, "d-0002")]
    claim = control.claim("d-0002", 1)
    assert claim is not None
    assert claim.launch_key == "d-0002-a0001"
    said = "\n".join(wait.stream.said)
    assert "waits at its first start(), until " in said
    assert "takes over as d-0002 attempt 1" in said
    if name is not None:
        assert wait.stream.events_of(QueryStarted, "d-0002")[0].how == "restored"
        clock.sleep(60)
        wait.start("more", make_plan())  # at once: it waits no more
        assert clock.monotonic_seconds() - begun == pytest.approx(67.0, abs=3.0)
        assert wait.driver.script_ended(None) == 0
    else:
        assert query.name == "query-1"


def test_where_nothing_is_handed_over_the_process_ends_and_nobody_noticed(wait: Wait) -> None:
    """With status 0, at its time (Law 6); the stream is as it was (Law 4)."""
    before = wait.stream.events()
    assert wait.ended_with() == 0
    assert wait.stream.events() == before
    assert wait.stream.clock.monotonic_seconds() < 2.1 + 100 + 60
    assert "nothing was handed over" in wait.stream.said[-1]


UPGRADE = replace(example(Upgrade), stream_id=STREAM, upgrade_id=upgrade_id_for("up-1"))


def is_taken_to(stream: SimulatedStream, number: int, phase: Phase) -> None:
    """The upgrade takes this step."""
    clock = stream.clock
    step = UpgradeStep(STREAM, UPGRADE.upgrade_id, number, phase, clock.now(), "tests", clock.new_uuid())
    UpgradeJournal(stream.control).take(step)


def test_where_its_upgrade_is_over_the_driver_ends_within_a_minute() -> None:
    """Another command has ended it, maybe where this driver could not be killed; nothing was handed over."""
    wait = Wait(waits_seconds=3_600, request_id=f"{UPGRADE.upgrade_id}-plan")
    UpgradeJournal(wait.stream.control).create(UPGRADE)
    is_taken_to(wait.stream, 1, "rehearsing")
    wait.stream.clock.after(200.0, lambda: is_taken_to(wait.stream, 2, "refused"))
    began_seconds = wait.stream.clock.monotonic_seconds()
    assert wait.ended_with() == 0
    assert 200 <= wait.stream.clock.monotonic_seconds() - began_seconds < 200 + LOOK_SECONDS + 10
    assert "has ended without a handover" in wait.stream.said[-1]


@pytest.mark.parametrize("is_recorded", [True, False])
def test_while_its_upgrade_is_under_way_or_unknown_it_waits_for_the_handover(*, is_recorded: bool) -> None:
    """Nor does it end over a handover that came with the end."""
    wait = Wait(waits_seconds=3_600, request_id=f"{UPGRADE.upgrade_id}-plan")
    if is_recorded:
        UpgradeJournal(wait.stream.control).create(UPGRADE)
        is_taken_to(wait.stream, 1, "ended")

    def follows_at_the_end() -> None:
        wait.follows()
        is_taken_to(wait.stream, 2, "upgraded")

    wait.stream.clock.after(200.0, follows_at_the_end)
    wait.start()
    assert len(wait.became) == 1


def test_a_handover_of_what_is_not_current_is_refused(wait: Wait) -> None:
    """Status 4, by the process, not by the script (Law 4)."""
    wait.stream.deploy(2, wait.start_plan)
    wait.hand_over(2)
    assert wait.ended_with() == FENCED_STATUS
    assert wait.stream.kinds("d-0002") == []
    assert "replaced" in wait.stream.said[-1]


def test_a_handover_to_what_was_never_recorded_ends_the_process(wait: Wait) -> None:
    """As a cold driver does that does not find its deployment."""
    wait.hand_over()
    assert wait.ended_with() == 1


@pytest.mark.parametrize("failure", [None, BROKEN])
def test_a_script_that_starts_nothing_simply_ends(wait: Wait, failure: ScriptFailure | None) -> None:
    """Its status is its own, and what comes too late is not obeyed."""
    assert wait.driver.script_ended(failure) == (0 if failure is None else 3)
    assert wait.driver.is_over


def test_after_the_handover_nobody_watches_its_time(wait: Wait) -> None:
    """It is an attempt then."""
    wait.follows()
    wait.start()
    wait.stream.clock.sleep(200)
    assert wait.driver.is_over
    assert wait.driver.end_if_overdue() is None


def test_what_is_found_when_the_end_was_decided_is_not_taken(wait: Wait) -> None:
    """A watching thread gave it up in the very moment of the handover: it is one or the other."""

    def both() -> None:
        assert wait.driver.end_if_overdue() == 0
        wait.follows()

    wait.stream.clock.after(100.0, both)
    assert wait.ended_with() == 0
    assert wait.became == []


def test_its_sink_is_warmed_before_it_waits_and_asked_again_after_the_handover(wait: Wait) -> None:
    """A batch that it got in the meantime refuses the start (Law 14)."""
    acts: list[object] = []
    startable = _Asked(wait.stream.checkpoints, wait.stream.clock, wait.plan)
    startable.before_warming = lambda query_id: acts.append(("warmed", query_id, wait.control_waits()))
    startable.before_asking = lambda: acts.append(("asked", len(wait.became)))
    manifest = wait.stream.control.need_manifest(str(wait.start_plan.snapshot_id))
    known = manifest.queries["counts"]

    def meanwhile() -> None:
        wait.plan.sink.batches.append(((known.position.batch_id or 0) + 1, ()))
        wait.follows()

    wait.stream.clock.after(5.0, meanwhile)
    with pytest.raises(InvalidRequestError, match="the sink holds batch ids"):
        wait.driver.start_query("counts", None, startable)
    assert acts == [("warmed", known.query_id, False), ("asked", 1)]
    assert any("query counts is warm" in line for line in wait.stream.said)


def test_a_sink_that_cannot_be_warmed_is_cold_and_the_driver_waits_all_the_same(wait: Wait) -> None:
    """The error is logged, and the query starts."""
    startable = wait.startable()

    def fails(_query_id: str) -> None:
        raise ZeroDivisionError("of theirs")

    startable.before_warming = fails
    wait.stream.clock.after(5.0, wait.follows)
    assert not wait.driver.start_query("counts", None, startable).ended
    assert any(
        "could not be warmed in full: its sink: ZeroDivisionError: of theirs" in line for line in wait.stream.said
    )


def test_while_nothing_comes_its_sink_is_asked_now_and_then() -> None:
    """The answers, and errors, are not used."""
    wait = Wait(waits_seconds=3_600)
    asked: list[float] = []
    startable = _Asked(wait.stream.checkpoints, wait.stream.clock, wait.plan)
    began = wait.stream.clock.monotonic_seconds()

    def ask() -> None:
        asked.append(wait.stream.clock.monotonic_seconds() - began)
        if not wait.became:
            raise ZeroDivisionError("of theirs")

    startable.before_asking = ask
    wait.stream.clock.after(2.5 * ASK_AGAIN_SECONDS, wait.follows)
    assert not wait.driver.start_query("counts", None, startable).ended
    assert asked == pytest.approx([ASK_AGAIN_SECONDS, 2 * ASK_AGAIN_SECONDS, 2.5 * ASK_AGAIN_SECONDS], abs=3.0)


def test_a_sink_that_does_not_answer_is_waited_for_no_longer_than_half_a_minute() -> None:
    """Then it is reported that the driver waits, which the controller waits for."""
    wait = Wait(in_background=never_do)
    began = wait.stream.clock.monotonic_seconds()
    wait.stream.clock.after(WARM_AGAIN_SECONDS - 1, lambda: _is_so(not wait.control_waits()))
    wait.stream.clock.after(WARM_AGAIN_SECONDS + 1, lambda: _is_so(wait.control_waits()))
    wait.stream.clock.after(WARM_AGAIN_SECONDS + 2, wait.follows)
    assert not wait.start().ended
    assert wait.stream.clock.monotonic_seconds() - began < WARM_AGAIN_SECONDS + 5
    assert any("it was not done in 30" in line for line in wait.stream.said)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.REPLY_LOST])
def test_a_store_that_is_away_is_asked_again(fault: Fault) -> None:
    """Nothing is concluded from it."""
    stream = SimulatedStream()
    plan = FaultPlan(dict.fromkeys(range(1, 6), fault))
    control = StreamControl(FaultyStore(stream.checkpoints, plan), STREAM, stream.clock)
    wait = Wait(stream, control=control)
    stream.clock.after(3.0, wait.follows)
    wait.start()
    assert stream.control.waiting(REHEARSAL) is not None
    assert len(wait.became) == 1
    assert fault is Fault.REPLY_LOST or any("out of reach" in line for line in stream.said)


def files(wait: Wait) -> dict[str, str]:
    """The objects of the stream, but for what reports that this driver waits."""
    found = {info.key: info.version for info in wait.stream.checkpoints.list_objects("")}
    found.pop(layout.waiting_key(STREAM, REHEARSAL), None)
    return found


def runs_of(wait: Wait) -> list[str]:
    """What was reported about batches that run while the driver waits."""
    return [line for line in wait.stream.said if "its newest batch ran" in line]


def test_the_newest_batch_runs_into_nothing_until_the_jvm_is_warm() -> None:
    """Before the driver reports that it waits; the sink and the checkpoints are as before (Laws 4,
    14)."""
    wait = Wait(plan=make_plan(trigger_seconds=0.1))
    written = list(wait.plan.sink.batches)
    before = files(wait)
    wait.stream.clock.after(50.0, lambda: _is_so(wait.control_waits()))
    assert wait.ended_with() == 0
    assert runs_of(wait) == [f"query counts: its newest batch ran {WARM_BATCHES} times, into nothing"]
    assert wait.plan.sink.batches == written
    assert files(wait) == before


def test_without_rows_in_its_rehearsal_no_batch_warms_it() -> None:
    """``--rehearse-batches 0`` asks that no row is read."""
    wait = Wait(batches=0)
    assert wait.ended_with() == 0
    assert runs_of(wait) == []


def test_a_batch_that_fails_while_it_warms_ends_nothing() -> None:
    """The rehearsal has reported it, or the stream has moved on since."""
    wait = Wait()
    last = max(wait.plan.sink.batches)[0]
    wait.plan = replace(wait.plan, fails_on_rows_of=set(range(last + 3)))
    wait.stream.clock.after(5.0, wait.follows)
    wait.start()
    assert runs_of(wait) == ["query counts: its newest batch ran 0 times, into nothing"]
    assert wait.stream.kinds("d-0002")[:3] == ["Claimed", "Started", "QueryStarted"]


def test_a_handover_that_is_told_is_taken_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On S3 the polls of a driver that has waited for long are seconds apart."""
    monkeypatch.setattr(MemoryStore, "uri", "s3://home")
    wait = Wait(bell=Bell(tmp_path / "bell"))
    clock = wait.stream.clock
    handed_over_at: list[float] = []

    def hand_over() -> None:
        wait.follows()
        handed_over_at.append(clock.monotonic_seconds())
        Bell(tmp_path / "bell").ring()

    clock.after(83.0, hand_over)
    wait.start()
    took = wait.stream.events_of(Claimed, "d-0002")[0].at - (clock.now() - timedelta(seconds=clock.monotonic_seconds()))
    assert took.total_seconds() - handed_over_at[0] < 0.1


@pytest.mark.parametrize(
    ("uri", "most_seconds"), [("memory://home", POLL_SECONDS_ON_DISK), ("s3://home", COMMAND_POLL_SECONDS_ON_S3)]
)
def test_asking_is_dear_on_s3(uri: str, most_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls become rarer, but never find a handover later than by a twentieth of the time waited."""
    monkeypatch.setattr(MemoryStore, "uri", uri)
    wait = Wait()
    wait.stream.clock.after(60.0, wait.follows)
    before = len(wait.stream.clock.slept_seconds)
    wait.start()
    slept = wait.stream.clock.slept_seconds[before:]
    assert max(slept) == most_seconds
    assert all(
        pause <= max(POLL_SECONDS_ON_DISK, SHARE_ON_S3 * sum(slept[:number])) + 1e-9
        for number, pause in enumerate(slept)
    )
