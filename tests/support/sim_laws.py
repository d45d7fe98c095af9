"""What must hold at the end of every life."""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Accepted,
    Drained,
    Draining,
    Event,
    Fenced,
    QueryStarted,
    SnapshotReady,
    Stopped,
)
from airflow_streamstate.snapshot.data import key_of
from support.fake_clock import FakeClock
from support.sim_processes import Process
from support.sim_world import World
from support.simulated_driver import STREAM
from support.simulated_sources import expected_counts, index_in

WINDOW_MS = 1_000


def assert_laws(world: World, *, orders_may_lie: bool = False, woke_up: bool = False) -> None:
    """Every law that can be seen from outside.

    Args:
        orders_may_lie: an order may have been written after the last driver ended.
        woke_up: a driver that slept may have written late events, under its own keys.
    """
    assert world.violations == [], world.violations
    defects = [line for line in world.said if line.startswith("unexpected")]
    assert defects == [], defects[0]  # Law 7 keeps a job alive over them; a simulation does not
    assert_rows(world)
    _assert_snapshots(world)
    _assert_kept_before_flushes(world)
    _assert_events(world, woke_up=woke_up)
    _assert_query_ids(world)
    _assert_orders(world, woke_up=woke_up)
    _assert_settled(world, orders_may_lie=orders_may_lie)
    if not woke_up:
        _assert_lineage(world)


def assert_rows(world: World) -> None:
    """Rows in are rows out, each once; batch ids continue, and none ever stood for two things (Laws 9, 12, 14)."""
    control = world.control
    register = control.need_register().value
    last = [
        entry.event
        for entry in control.journal(str(register.deployment_id)).events()
        if isinstance(entry.event, Drained)
    ]
    assert last, "the life does not end drained"
    ends = last[-1].queries
    for name, plan in world.plans.items():
        (line,) = ends[name].end_offsets
        read = world.source.rows[: index_in(line)]
        if plan.window_ms is not None:
            assert plan.sink.counts() == expected_counts(read, WINDOW_MS), f"{len(read)} rows in: {plan.sink.batches}"
        else:
            assert plan.sink.rows == read, (
                f"{len(read)} rows in, batches of {[len(one) for _, one in plan.sink.batches]}"
            )
        ids = [batch_id for batch_id, _ in plan.sink.batches]
        assert ids == sorted(set(ids)), f"batch ids in the sink: {ids}"
        twice = {batch_id: rows for batch_id, rows in plan.sink.offered.items() if len(rows) > 1}
        assert twice == {}, f"a batch id of {name} was for two things (Law 14): {twice}"


def _assert_lineage(world: World) -> None:
    """An audit by the logs alone finds a complete chain (Laws 9, 12, 14), and names each batch that a sink was given
    again."""
    audited = lineage_of(Home.of(world.store, world.store, world.launches, FakeClock()), STREAM)
    found = audited.to_json()
    assert found["ok"], found
    assert found["may_be_doubled"] == [], "these sinks know their batches"
    named = {(one.query_name, one.batch_id) for one in audited.repeats}
    for name, plan in world.plans.items():
        again = {batch_id for batch_id, times in plan.sink.given.items() if times > 1}
        unnamed = {batch_id for batch_id in again if (name, batch_id) not in named}
        assert unnamed == set(), f"{name} gave its sink these batches again, and no audit names them: {unnamed}"


def _assert_snapshots(world: World) -> None:
    """Nothing ever started from a snapshot without a manifest, and no event names one (Law 3)."""
    control = world.control
    for deployment_id in control.deployment_ids():
        start = control.spec(deployment_id).start
        named = {start.snapshot_id} if start.snapshot_id else set()
        for entry in control.journal(deployment_id).events():
            if isinstance(entry.event, Drained | Stopped | SnapshotReady | QueryStarted):
                named.add(entry.event.snapshot_id)
        for snapshot_id in named - {None}:
            manifest = control.manifest(snapshot_id)
            assert manifest is not None, snapshot_id
            for name, query in manifest.queries.items():
                for file in query.files:
                    store = world.place if manifest.data_uri else world.store
                    info = store.head(key_of(manifest, name, file))
                    assert info is not None, (snapshot_id, file)
                    assert info.size_bytes == file.size_bytes, (snapshot_id, file)


def _assert_kept_before_flushes(world: World) -> None:
    """Before anything is flushed, the state is kept (1a.5)."""
    control = world.control
    for deployment_id in control.deployment_ids():
        for entry in control.journal(deployment_id).events():
            if not isinstance(entry.event, Draining) or not entry.event.flush_batch_ids:
                continue
            manifest = control.manifest(entry.event.snapshot_id or "none")
            assert manifest is not None, f"{deployment_id} flushes, and kept nothing before"
            assert manifest.snapshot_kind == "pre-drain", manifest.snapshot_id


def _assert_events(world: World, *, woke_up: bool) -> None:
    """Events are numbered without a gap; an attempt ends once; a deployment is drained once; only the first starts
    with nothing (Law 5)."""
    control = world.control
    for deployment_id in control.deployment_ids():
        entries = list(control.journal(deployment_id).events())
        assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
        events = [entry.event for entry in entries if entry.event is not None]
        assert len(events) == len(entries)
        ends = [event for event in events if isinstance(event, TERMINAL_EVENTS) and not isinstance(event, Fenced)]
        by_attempt = [(event.attempt, event.kind) for event in ends if not isinstance(event, Drained)]
        assert len(by_attempt) == len({attempt for attempt, _ in by_attempt}), by_attempt
        drains = [event for event in ends if isinstance(event, Drained)]
        assert len({event.snapshot_id for event in drains}) <= (2 if woke_up else 1)
        start = control.spec(deployment_id).start
        predecessor = start.predecessor_id
        if not woke_up:
            is_new = predecessor is None or not _ever_started(world, predecessor)
            manifest = control.manifest(start.snapshot_id) if start.snapshot_id else None
            positions = [] if manifest is None else [query.position for query in manifest.queries.values()]
            assert is_new or start.mode != "fresh", start
            # Drained before its first batch: the snapshot shows it, and each query starts where its options state.
            assert not is_new or all(position.batch_id is None for position in positions), start


def _assert_query_ids(world: World) -> None:
    """A query's id continues with its batch ids, from checkpoint to checkpoint (Law 9)."""
    control = world.control
    for name in world.plans:
        before = None
        for deployment_id in control.deployment_ids():
            checkpoint = Checkpoint(world.store, layout.checkpoint_folder(STREAM, deployment_id, name))
            if not checkpoint.exists() or not checkpoint.commit_ids():
                continue  # half built, it is nothing yet (1a.10)
            query_id = checkpoint.query_id()
            assert before in (None, query_id), f"{name} of {deployment_id}: {query_id}, and before it {before}"
            before = query_id


def _assert_orders(world: World, *, woke_up: bool) -> None:
    """Every order that was ever written has exactly one end that its requester can read."""
    controller = world.calm_controller(Process(world.schedule, "reader", 0, lambda _: None))
    for deployment_id, command_id in world.watched.commands:
        look = controller.look(WaitCondition("stopped", STREAM, deployment_id, command_id=command_id))
        assert look.outcome != "pending", f"the order {command_id} to {deployment_id} has no end: {look.last_seen}"
        answers = [
            entry.event.kind
            for entry in world.control.journal(deployment_id).events()
            if entry.event is not None and _answers(entry.event, command_id)
        ]
        # One flush that failed next to another that is committed: the drain has ended, and a resume finishes it.
        kinds = {kind for kind in answers if kind != "DrainFailed" or answers[-1] != "Drained"}
        assert len(kinds) <= (2 if woke_up else 1), f"the order {command_id} to {deployment_id}: {answers}"


def _answers(event: Event, command_id: str) -> bool:
    named = (getattr(event, "command_id", None), *getattr(event, "also_answers", ()))
    return command_id in named and not isinstance(event, Accepted | Draining)


def _ever_started(world: World, deployment_id: str) -> bool:
    """Whether a query of this deployment, or of one before it, was ever started."""
    control = world.control
    events = [entry.event for entry in control.journal(deployment_id).events()]
    before = control.spec(deployment_id).start.predecessor_id
    return any(isinstance(event, QueryStarted) for event in events) or (
        before is not None and _ever_started(world, before)
    )


def _assert_settled(world: World, *, orders_may_lie: bool) -> None:
    """No order is left, no deploy is pending, and each driver has ended."""
    control = world.control
    register = control.need_register().value
    assert register.intent is None
    tokens = [control.spec(deployment_id).fencing_token for deployment_id in control.deployment_ids()]
    assert tokens == sorted(set(tokens))
    left = []
    for deployment_id in control.deployment_ids():
        journal = control.journal(deployment_id)
        # One that came when its deployment was ending has an end (above), and is there until the next deploy.
        left += [slot.key for slot in journal.commands() if slot.command is None or not orders_may_lie]
    assert left == []
    alive = [key for key, launched in world.machine.items() if launched.process and not launched.process.has_ended]
    assert alive == []
