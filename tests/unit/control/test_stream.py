"""One stream's control objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import (
    DeploymentNotFoundError,
    InvalidRequestError,
    MalformedMessageError,
    ObjectExistsError,
    SnapshotNotFoundError,
    StreamNotFoundError,
    UnsupportedVersionError,
    VersionConflictError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, OLDEST_PROTOCOL, Message, to_bytes
from airflow_streamstate.protocol.manifest import SnapshotManifest, SnapshotSeal
from airflow_streamstate.protocol.positions import Heartbeat
from airflow_streamstate.protocol.records import Claim, DeploymentSpec, LaunchRecord, RequestRecord, StreamRegister
from airflow_streamstate.protocol.scratch import Handover, ScratchRun, ScratchVerdict, Waiting
from airflow_streamstate.store.memory import MemoryStore
from support.examples import example
from support.fake_clock import FakeClock

HOSTILE = ["../x", "", "a" * 64, "UPPER", "a/b", ".", ".."]
DEPLOYMENT, SNAPSHOT, LAUNCH, REQUEST = "d-0003", "d-0003-stopped-000002", "d-0003-a0002", "af-0123456789"
REHEARSAL = "r-0b8e3c525f0e-0001"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("home")


@pytest.fixture
def stream(store: MemoryStore) -> StreamControl:
    return StreamControl(store, "orders", FakeClock())


def one(cls: type[Message]) -> Any:
    return example(cls)


@pytest.mark.parametrize("stream_id", HOSTILE)
def test_a_hostile_stream_id_is_refused(store: MemoryStore, stream_id: str) -> None:
    """Before anything is read or written."""
    with pytest.raises(InvalidRequestError, match="stream id"):
        StreamControl(store, stream_id, FakeClock())


@pytest.mark.parametrize("bad", HOSTILE)
@pytest.mark.parametrize(
    "method", ["spec", "journal", "heartbeat", "manifest", "need_manifest", "request", "scratch_run", "verdict"]
)
def test_hostile_ids_are_refused(stream: StreamControl, method: str, bad: str) -> None:
    """Whatever a user passes on: no key is made of it."""
    with pytest.raises(InvalidRequestError):
        getattr(stream, method)(bad)


def test_hostile_ids_of_claims_and_launches_are_refused(stream: StreamControl) -> None:
    """Also where there are two."""
    for act in (
        lambda: stream.claim("../x", 1),
        lambda: stream.launch("../x", LAUNCH),
        lambda: stream.launch(DEPLOYMENT, "../x"),
        lambda: stream.create_request(replace(one(RequestRecord), request_id="../x")),
    ):
        with pytest.raises(InvalidRequestError):
            act()


# the register


def test_a_stream_that_was_never_deployed_is_not_found(stream: StreamControl) -> None:
    """Without a register, or with one in which no deployment ever started, the home is named."""
    assert stream.register() is None
    with pytest.raises(StreamNotFoundError, match="memory://home"):
        stream.need_register()
    stream.create_register(replace(one(StreamRegister), deployment_id=None, fencing_token=0))
    with pytest.raises(StreamNotFoundError):
        stream.need_register()


def test_the_register_is_created_and_replaced(stream: StreamControl) -> None:
    """By compare-and-swap; the version of each write is good for the next (Law 4)."""
    first = stream.create_register(one(StreamRegister))
    assert stream.need_register() == first
    second = stream.update_register(lambda now: replace(now, fencing_token=4), since=first, by="ada")
    assert stream.need_register() == second
    with pytest.raises(VersionConflictError):
        stream.update_register(lambda now: now, since=first, by="ada")
    with pytest.raises(ObjectExistsError):
        stream.create_register(first.value)


# records, each by its own key


Create = Callable[[StreamControl, Any], None]
Read = Callable[[StreamControl], object]
RECORDS: dict[str, tuple[type[Message], Create, Read, str]] = {
    "spec": (
        DeploymentSpec, StreamControl.create_spec, lambda s: s.spec(DEPLOYMENT), layout.spec_key("orders", DEPLOYMENT)
    ),
    "claim": (
        Claim, StreamControl.create_claim, lambda s: s.claim(DEPLOYMENT, 2), layout.claim_key("orders", DEPLOYMENT, 2)
    ),
    "launch": (
        LaunchRecord, StreamControl.create_launch, lambda s: s.launch(DEPLOYMENT, LAUNCH),
        layout.launch_record_key("orders", DEPLOYMENT, LAUNCH),
    ),
    "request": (
        RequestRecord, StreamControl.create_request, lambda s: s.request(REQUEST),
        layout.idempotency_key("orders", REQUEST),
    ),
    "manifest": (
        SnapshotManifest, StreamControl.create_manifest, lambda s: s.manifest(SNAPSHOT),
        layout.manifest_key("orders", SNAPSHOT),
    ),
    "scratch run": (
        ScratchRun, StreamControl.create_scratch_run, lambda s: s.scratch_run(REHEARSAL),
        layout.scratch_run_key("orders", REHEARSAL),
    ),
    "verdict": (
        ScratchVerdict, StreamControl.create_verdict, lambda s: s.verdict(REHEARSAL),
        layout.verdict_key("orders", REHEARSAL),
    ),
    "waiting": (
        Waiting, StreamControl.create_waiting, lambda s: s.waiting(REHEARSAL), layout.waiting_key("orders", REHEARSAL)
    ),
    "handover": (
        Handover, StreamControl.create_handover, lambda s: s.handover(REHEARSAL),
        layout.handover_key("orders", REHEARSAL),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_created_once_and_read_back(stream: StreamControl, name: str) -> None:
    """Under its own key; the second creator learns that it is the second (Law 4)."""
    cls, create, read, key = RECORDS[name]
    create(stream, one(cls))
    assert read(stream) == one(cls)
    assert [info.key for info in stream.home.list_objects("")] == [key]
    with pytest.raises(ObjectExistsError):
        create(stream, one(cls))


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("damage", [b"", b"{", b'{"protocol": 3, "kind": "Claimed"}'], ids=["empty", "cut", "other"])
def test_a_damaged_record_is_refused(stream: StreamControl, name: str, damage: bytes) -> None:
    """It is neither guessed nor taken for absent (Law 7)."""
    _, _, read, key = RECORDS[name]
    stream.home.put(key, damage)
    with pytest.raises(MalformedMessageError):
        read(stream)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("protocol", [OLDEST_PROTOCOL - 1, NEWEST_PROTOCOL + 1])
def test_a_record_of_another_protocol_is_refused(stream: StreamControl, name: str, protocol: int) -> None:
    """By its version (Law 7)."""
    cls, _, read, key = RECORDS[name]
    stream.home.put(key, to_bytes(one(cls), protocol=protocol))
    with pytest.raises(UnsupportedVersionError):
        read(stream)


@pytest.mark.parametrize("name", [*RECORDS, "register"])
def test_a_record_of_another_stream_is_refused(stream: StreamControl, name: str) -> None:
    """A copy of a different stream's record counts for nothing here (Law 7)."""
    if name == "register":
        cls, read, key = StreamRegister, StreamControl.register, layout.register_key("orders")
    else:
        cls, _, read, key = RECORDS[name]  # type: ignore[assignment]
    stream.home.put(key, to_bytes(replace(one(cls), stream_id="others")))
    with pytest.raises(MalformedMessageError, match="belongs elsewhere"):
        read(stream)


@pytest.mark.parametrize(
    ("name", "change"),
    [("spec", {"deployment_id": "d-0004"}), ("claim", {"attempt": 3}), ("launch", {"launch_key": "d-0003-a0009"}),
     ("request", {"request_id": "af-9"}), ("manifest", {"snapshot_id": "d-0003-live-000001"}),
     ("scratch run", {"run_id": "r-0b8e3c525f0e-0002"}), ("verdict", {"run_id": "r-0b8e3c525f0e-0002"})],
)  # fmt: skip
def test_a_record_under_another_ones_key_is_refused(stream: StreamControl, name: str, change: dict[str, Any]) -> None:
    """The ids in it must be those of its key (Law 7)."""
    cls, _, read, key = RECORDS[name]
    stream.home.put(key, to_bytes(replace(one(cls), **change)))
    with pytest.raises(MalformedMessageError, match="belongs elsewhere"):
        read(stream)


def test_what_is_not_there(stream: StreamControl) -> None:
    """Absence is None where it is usual, and an error with a name where the thing is needed."""
    assert stream.claim(DEPLOYMENT, 1) is None
    assert stream.launch(DEPLOYMENT, LAUNCH) is None
    assert stream.request("r-1") is None
    assert stream.manifest(SNAPSHOT) is None
    assert (stream.scratch_run(REHEARSAL), stream.verdict(REHEARSAL), stream.scratch_ids()) == (None, None, [])
    assert stream.seal(SNAPSHOT) is None
    assert stream.heartbeat(DEPLOYMENT) is None
    with pytest.raises(DeploymentNotFoundError, match="d-0003"):
        stream.spec(DEPLOYMENT)
    with pytest.raises(SnapshotNotFoundError, match="no complete snapshot"):
        stream.need_manifest(SNAPSHOT)


# beacons


def test_the_heartbeat_is_written_over(stream: StreamControl) -> None:
    """The last one counts."""
    for attempt in (1, 2):
        stream.put_heartbeat(replace(one(Heartbeat), attempt=attempt))
    beat = stream.heartbeat(DEPLOYMENT)
    assert beat is not None
    assert beat.attempt == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"{", to_bytes(example(Heartbeat), protocol=2), to_bytes(replace(one(Heartbeat), stream_id="others"))],
    ids=["empty", "cut", "newer", "another stream's"],
)
def test_a_heartbeat_that_cannot_be_read_is_none(stream: StreamControl, body: bytes) -> None:
    """A damaged sign of life is no sign of life, and no error (Law 7)."""
    stream.home.put(layout.heartbeat_key("orders", DEPLOYMENT), body)
    assert stream.heartbeat(DEPLOYMENT) is None


def test_the_seal_is_read_back(stream: StreamControl) -> None:
    """By the snapshot's id; another snapshot's is refused."""
    stream.put_seal(one(SnapshotSeal))
    assert stream.seal(SNAPSHOT) == one(SnapshotSeal)
    stream.home.copy(layout.seal_key("orders", SNAPSHOT), layout.seal_key("orders", "s-other"))
    with pytest.raises(MalformedMessageError):
        stream.seal("s-other")


# listings


def test_deployments_are_listed_oldest_first(stream: StreamControl) -> None:
    """By their number, also beyond the padding."""
    for deployment_id in ("d-10000", "d-0002", "d-0010", "d-9999"):
        stream.home.put(layout.spec_key("orders", deployment_id), b"{}")
    assert stream.deployment_ids() == ["d-0002", "d-0010", "d-9999", "d-10000"]


def test_snapshots_are_listed(stream: StreamControl) -> None:
    """Every folder, complete or not; only this stream's."""
    stream.create_manifest(one(SnapshotManifest))
    stream.home.put(f"{layout.snapshot_data_folder('orders', 'd-0003-live-000009', 'q')}/metadata", b"{}")
    stream.home.put(layout.manifest_key("orders-2", "d-0001-live-000001"), b"{}")
    assert stream.snapshot_ids() == ["d-0003-live-000009", SNAPSHOT]


def test_rehearsals_are_no_deployments(stream: StreamControl) -> None:
    """They have their own list, and neither deployments nor snapshots know them."""
    stream.create_scratch_run(one(ScratchRun))
    stream.create_spec(replace(one(DeploymentSpec), deployment_id=REHEARSAL))
    stream.create_manifest(replace(one(SnapshotManifest), snapshot_id=REHEARSAL))
    assert stream.scratch_ids() == [REHEARSAL]
    assert (stream.deployment_ids(), stream.snapshot_ids()) == ([], [])
    assert stream.spec(REHEARSAL).deployment_id == REHEARSAL


def test_the_journal_is_this_deployments(stream: StreamControl) -> None:
    """Its keys are below the deployment's folder (Law 4)."""
    own = stream.journal(DEPLOYMENT)
    assert (own.stream_id, own.deployment_id) == ("orders", DEPLOYMENT)
    assert own.commands() == []
