"""Malformed and hostile objects in every place of a home: readers, the agent, starts (Law 7).

A few thousand by default; with ``STREAMSTATE_FUZZ=full`` more than 100,000. A failure names its seed and its object.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import from_bytes
from airflow_streamstate.protocol.commands import Command, DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Rejected, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.protocol.positions import QueryBeat
from airflow_streamstate.protocol.records import Claim
from airflow_streamstate.store.memory import MemoryStore
from support.hostile import hostile_bytes
from support.sim_stage import STREAM, Stage
from support.simulated_driver import STREAM as SIMULATED
from support.simulated_driver import SimulatedStream, make_plan, waiting_script

IS_FULL = os.environ.get("STREAMSTATE_FUZZ") == "full"
SEEDS = range(32 if IS_FULL else 4)
READS_PER_SEED = 2_500 if IS_FULL else 400
STARTS_PER_SEED = 500 if IS_FULL else 60
AGENT_OBJECTS_PER_SEED = 400 if IS_FULL else 120

pytestmark = pytest.mark.timeout(3_600 if IS_FULL else 300)


def full_home(folder: Path) -> Stage:
    """A stream with objects of every kind: a deployment that was stopped, one that runs and will be drained."""
    stage = Stage(folder)
    stage.deploy(conf={"spark.a": "b"}, arguments=("--x", "1"))
    stage.stopped()
    for problem in stage.controller.snapshots.verify(STREAM, "d-0001-stopped-000001"):
        raise AssertionError(problem)
    stage.deploy("print('v2')\n", request_id="second")
    stage.come_to_life("d-0002", queries=("counts",))
    stage.run_batches(6, deployment_id="d-0002")
    stage.keep("live", "d-0002")
    stage.beat("d-0002", counts=QueryBeat(6, stage.clock.now(), is_active=True, state_rows=3))
    stage.controller.order("drain", STREAM, request_id="third")
    return stage


NAMES = (
    "x",
    "0",
    "00000000",
    "-1",
    "1e9",
    "9" * 30,
    "٣",
    "d-9999",
    "D-0001",
    "_",
    "a b",
    "é",
    "x" * 200,
    "00000001.json",
)
PLACES = (
    "{0}/deployments/d-0002/commands/{1}.json",
    "{0}/deployments/d-0002/events/{1}.json",
    "{0}/deployments/d-0002/claims/{1}.json",
    "{0}/deployments/d-0002/launches/{1}/launch.json",
    "{0}/deployments/d-0002/checkpoints/{1}/offsets/0",
    "{0}/deployments/d-0002/checkpoints/counts/offsets/{1}",
    "{0}/deployments/d-0002/checkpoints/counts/commits/{1}",
    "{0}/deployments/{1}/spec.json",
    "{0}/snapshots/{1}/manifest.json",
    "{0}/idempotency/{1}.json",
    "{1}/stream.json",
    "{1}",
)


def stray_key(random: Random) -> str:
    """A place where nothing of ours would be."""
    return random.choice(PLACES).format(STREAM, random.choice(NAMES))


def bodies(store: MemoryStore) -> dict[str, bytes]:
    """Every object of a store."""
    found = {info.key: store.get(info.key) for info in store.list_objects("")}
    return {key: stored.body for key, stored in found.items() if stored is not None}


def readers(stage: Stage) -> dict[str, Callable[[], object]]:
    """Everything that only looks."""
    controller, control = stage.controller, stage.control
    journals = [control.journal(deployment_id) for deployment_id in ("d-0001", "d-0002")]
    return {
        "status": lambda: controller.status(STREAM).to_json(),
        "status of the first": lambda: controller.status(STREAM, "d-0001").to_json(),
        "statuses": lambda: [status.to_json() for status in controller.statuses()],
        "events": lambda: controller.events(STREAM),
        "events of the first": lambda: controller.events(STREAM, "d-0001"),
        "snapshots": lambda: controller.kept_snapshots(STREAM),
        "prune, dry": lambda: controller.retention.prune(STREAM, RetentionPolicy(keep=0), is_dry=True),
        "verify": lambda: controller.snapshots.verify(STREAM, "d-0001-stopped-000001"),
        "drain outcome": lambda: controller.look(WaitCondition("drained", STREAM, "d-0002")),
        "end outcome": lambda: controller.look(WaitCondition("finished", STREAM, "d-0001")),
        "healthy": lambda: controller.look(WaitCondition("healthy", STREAM, "d-0002")),
        "logs": lambda: controller.logs(STREAM),
        "commands": lambda: [journal.commands() for journal in journals],
        "every event": lambda: [list(journal.events()) for journal in journals],
        "specs": lambda: [control.spec(name) for name in control.deployment_ids()],
        "claim": lambda: control.claim("d-0002", 1),
        "launch": lambda: control.launch("d-0002", "d-0002-a0001"),
        "heartbeat": lambda: control.heartbeat("d-0002"),
        "request": lambda: control.request("second"),
        "seal": lambda: control.seal("d-0001-stopped-000001"),
        "position": lambda: stage.checkpoint(deployment_id="d-0002").position(),
    }


@contextmanager
def told(seed: int, number: int, key: str, way: str, body: bytes, doing: str) -> Iterator[None]:
    """Our own errors are answers; everything else is named with the object that brought it about."""
    try:
        yield
    except StreamStateError:
        return
    except BaseException as error:
        shown = body[:300]
        error.add_note(f"seed {seed}, object {number}: {doing} over {key}, {way}: {shown!r}")
        raise


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_ignore_or_refuse_whatever_lies_there(tmp_path: Path, seed: int) -> None:
    """No object makes a verb that looks fail otherwise than by an error of ours, and none is changed by looking."""
    random, stage = Random(seed), full_home(tmp_path)
    assert isinstance(stage.store, MemoryStore)
    good = bodies(stage.store)
    keys, others = sorted(good), list(good.values())
    looks = readers(stage)
    ways: Counter[str] = Counter()
    for number in range(READS_PER_SEED):
        key = stray_key(random) if random.random() < 0.15 else random.choice(keys)
        way, body = hostile_bytes(random, good.get(key, random.choice(others)), others)
        ways[way] += 1
        stage.store.put(key, body)
        for doing in random.sample(sorted(looks), 6):
            with told(seed, number, key, way, body, doing):
                looks[doing]()
        if key in good:
            stage.store.put(key, good[key])
        else:
            stage.store.delete(key)
    register = layout.retention_key(STREAM)  # a verification has a lease on its snapshot
    assert {**bodies(stage.store), register: good[register]} == good
    assert len(ways) >= 12


def copy_of(store: MemoryStore) -> dict[str, bytes]:
    return dict(bodies(store))


def put_back(store: MemoryStore, good: dict[str, bytes]) -> None:
    """Make the store what it was."""
    for key in set(bodies(store)) - set(good):
        store.delete(key)
    for key, body in good.items():
        if (stored := store.get(key)) is None or stored.body != body:
            store.put(key, body)


def says_the_same(manifest: SnapshotManifest, good: SnapshotManifest) -> bool:
    """Whether a start from the one equals a start from the other; author and time do not count."""
    told_only = {name: getattr(good, name) for name in ("taken_at", "taken_by", "write_id", "command_id", "attempt")}
    told_only |= {"spark_version": good.spark_version, "fencing_token": good.fencing_token}
    return replace(manifest, **told_only) == good


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_restored_from_damage(tmp_path: Path, seed: int) -> None:
    """Whatever is wrong with a manifest or with a file of a snapshot: the deploy is refused, and the stream is as it
    was; or what is wrong is nothing that a start takes from there (Laws 3 and 5)."""
    random, stage = Random(seed), Stage(tmp_path)
    assert isinstance(stage.store, MemoryStore)
    stage.deploy()
    snapshot_id = str(stage.stopped().snapshot_id)
    stage.controller.snapshots.verify(STREAM, snapshot_id)
    good, manifest = copy_of(stage.store), stage.control.need_manifest(snapshot_id)
    others = list(good.values())
    manifest_key = layout.manifest_key(STREAM, snapshot_id)
    data = sorted(key for key in good if f"/snapshots/{snapshot_id}/" in key and key != manifest_key)
    refused = 0
    for number in range(STARTS_PER_SEED):
        key = manifest_key if random.random() < 0.6 else random.choice(data)
        way, body = hostile_bytes(random, good[key], others)
        stage.store.put(key, body)
        with told(seed, number, key, way, body, "deploy"):
            try:
                view = stage.deploy(f"print({number})\n")
            except StreamStateError:
                refused += 1
                register = stage.control.need_register().value
                assert (register.deployment_id, register.fencing_token) == ("d-0001", 1)
            else:
                assert view.start.mode == "restore"
                assert view.start.snapshot_id == snapshot_id
                assert says_the_same(stage.control.need_manifest(snapshot_id), manifest)
                assert body == good[key] or key == manifest_key or key.endswith("/seal.json")
        put_back(stage.store, good)
        stage.launcher.states.pop("d-0002-a0001", None)
    assert refused > STARTS_PER_SEED // 2


@pytest.mark.parametrize("kind", [StopRequest, DrainNotification])
def test_an_order_waits_for_a_register_that_is_mended(kind: type[Command]) -> None:
    """An unreadable register does not show which driver was replaced: what was ordered in the meantime is done once
    the register can be read, and never before (Laws 4 and 7)."""
    stream, plan = SimulatedStream(), make_plan(100)
    stream.deploy()
    key = layout.register_key(SIMULATED)
    good = stream.checkpoints.get(key)
    assert good is not None
    stream.clock.after(3.0, lambda: stream.checkpoints.put(key, good.body[:40]))
    stream.order_at(5.0, kind)
    stream.clock.after(60.0, lambda: stream.checkpoints.put(key, good.body))
    assert stream.run(waiting_script(plan)) == 0
    assert stream.kinds()[-1] == ("Drained" if kind is DrainNotification else "Stopped")
    assert not {"DrainFailed", "Fenced", "Failed"} & set(stream.kinds())
    assert any("the register of the stream cannot be read" in line for line in stream.said)


def is_claim_of_another(body: bytes, key: str, own: Claim | None) -> bool:
    """Whether this is a claim that can be read, and another than this one."""
    try:
        return own is None or from_bytes(body, key=key, expected=Claim).write_id != own.write_id
    except StreamStateError:
        return False


@pytest.mark.parametrize("seed", SEEDS)
def test_the_agent_and_its_job_run_on(seed: int) -> None:
    """Commands that are none, a register, a heartbeat, events and claims that were spoilt: the job continues, obeys the
    next good order, and has counted each row once; what could not be read is answered once and left there."""
    random, stream, plan = Random(seed), SimulatedStream(), make_plan(1_000)
    spec = stream.deploy()
    foreign = SimulatedStream(clock=stream.clock)
    foreign.deploy(7)
    order = foreign.order(StopRequest, "d-0007")
    others = [*bodies(foreign.checkpoints).values(), b"{}"]  # type: ignore[arg-type]
    keys = {
        "register": layout.register_key(SIMULATED),
        "heartbeat": layout.heartbeat_key(SIMULATED, spec.deployment_id),
        "claim": layout.claim_key(SIMULATED, spec.deployment_id, 1),
        "spec": layout.spec_key(SIMULATED, spec.deployment_id),
    }
    written: list[str] = []
    own: list[Claim | None] = []

    def spoil() -> None:
        number = len(written)
        if not written:
            own.append(stream.control.claim(spec.deployment_id, 1))
        if random.random() < 0.6:
            good = others[-2]
            key = layout.command_key(SIMULATED, spec.deployment_id, 1 + random.randrange(40))
        else:
            key = keys[random.choice(sorted(keys))]
            found = stream.checkpoints.get(key)
            good = b"{}" if found is None else found.body
        way, body = hostile_bytes(random, good, others)
        written.append(f"{key}: {way}")
        if key == keys["claim"] and is_claim_of_another(body, key, own[0]):
            return  # one that can be read is a claim, and states which driver is the attempt
        if key != keys["register"]:
            stream.checkpoints.put(key, body)
            return
        # A readable one names the current deployment; an unreadable one names nothing.
        stream.checkpoints.put(key, body[: number % max(1, len(body) - 2)])
        stream.clock.after(15.0, lambda: stream.checkpoints.put(key, good))

    for number in range(AGENT_OBJECTS_PER_SEED):
        stream.clock.after(3.0 + number * 0.5, spoil)
    end = 30.0 + AGENT_OBJECTS_PER_SEED * 0.5
    good_register = stream.checkpoints.get(keys["register"])
    assert good_register is not None
    stream.clock.after(end - 5.0, lambda: stream.checkpoints.put(keys["register"], good_register.body))
    stream.order_at(end, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert [line for line in stream.said if "unexpected" in line or "Traceback" in line] == []
    assert len(written) == AGENT_OBJECTS_PER_SEED
    assert stream.kinds()[-1] == Stopped.kind
    assert "Fenced" not in stream.kinds()
    assert stream.events_of(Rejected)
    assert order.command_id not in {getattr(event, "command_id", "") for event in stream.events_of(Stopped)}
    counted = sum(plan.sink.counts().values())
    assert counted > 0
