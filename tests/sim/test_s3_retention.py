"""Snapshots on S3: the second one copies only what has changed, and a prune keeps what the others need."""

from __future__ import annotations

import re

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.snapshot.data import shared_bytes
from airflow_streamstate.snapshot.deletion import Remover
from airflow_streamstate.snapshot.verify import check_before_start, verify
from airflow_streamstate.store.s3 import s3_store
from support.checkpoints import commit_batch
from support.fake_clock import FakeClock
from support.s3_server import BUCKET, StrikingProxy, options_for
from support.snapshots import QUERY, STREAM, Shelf, plan_stateful, run_stateful

IDS = [f"d-0001-live-{number:06d}" for number in range(1, 4)]
STATE_BYTES = 400_000
PARTITIONS = 2


@pytest.fixture
def shelf(s3_proxy: StrikingProxy, request: pytest.FixtureRequest) -> Shelf:
    """A stream on S3, behind the proxy that counts."""
    prefix = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())
    clock = FakeClock()
    return Shelf(s3_store(BUCKET, prefix, options_for(s3_proxy.endpoint_url), clock=clock), clock=clock)


def batch(checkpoint: Checkpoint, batch_id: int) -> int:
    """One more batch with state of some size; how many bytes of state it wrote."""
    plan_stateful(checkpoint, batch_id)
    for partition in range(PARTITIONS):
        body = f"{batch_id}/{partition} ".encode().ljust(STATE_BYTES, b"x")
        checkpoint.store.put(checkpoint.key(f"state/0/{partition}/{batch_id + 1}.delta"), body)
    commit_batch(checkpoint, batch_id, watermark_ms=1000 * (batch_id + 1))
    return PARTITIONS * STATE_BYTES


def stored_bytes(shelf: Shelf) -> int:
    return sum(info.size_bytes for info in shelf.checkpoints.list_objects(f"{STREAM}/"))


def test_the_second_snapshot_moves_what_has_changed(shelf: Shelf, s3_proxy: StrikingProxy) -> None:
    """Bytes of what is new and 5 % at most, one copy for each new file, and both are complete by the server's own
    checksums (Law 3)."""
    checkpoint = run_stateful(shelf.checkpoint(), 0)
    for batch_id in range(1, 6):
        batch(checkpoint, batch_id)
    shelf.capture(snapshot_id=IDS[0], kind="live")
    changed = batch(checkpoint, 6)
    before = stored_bytes(shelf)
    s3_proxy.forget()
    second = shelf.capture(snapshot_id=IDS[1], kind="live")
    copies = s3_proxy.operations["CopyObject"]
    own = [entry for entry in second.queries[QUERY].files if not entry.shared_from]
    assert copies == len(own) < second.files_count / 2
    assert stored_bytes(shelf) - before <= 1.05 * changed
    manifests = [shelf.control.need_manifest(one) for one in IDS[:2]]
    assert shared_bytes(shelf.checkpoints, manifests)[IDS[1]] >= 5 * PARTITIONS * STATE_BYTES
    assert verify(shelf.control, shelf.checkpoints, IDS[1]) == []
    assert check_before_start(shelf.control, shelf.checkpoints, second) is None


def test_what_a_kept_snapshot_shares_outlives_the_one_that_it_shares_with(shelf: Shelf) -> None:
    """Pruned down to the newest, of the older ones just those files stay that it has; with it all go."""
    checkpoint = run_stateful(shelf.checkpoint(), 0)
    for number, snapshot_id in enumerate(IDS):
        batch(checkpoint, number + 1)
        shelf.capture(snapshot_id=snapshot_id, kind="live")
    remover = Remover(shelf.control, shelf.places, "tests")
    manifests = {one: shelf.control.need_manifest(one) for one in IDS}
    assert remover.condemn(manifests, lambda _: IDS[:2]) == IDS[:2]
    remover.sweep()
    assert shelf.control.manifest(IDS[0]) is None
    assert verify(shelf.control, shelf.checkpoints, IDS[2]) == []
    assert {info.key.split("/")[2] for info in shelf.checkpoints.list_objects(f"{STREAM}/snapshots/")} == set(IDS)
    remover.condemn({IDS[2]: manifests[IDS[2]]}, lambda _: IDS)
    remover.sweep()
    assert list(shelf.checkpoints.list_objects(f"{STREAM}/snapshots/")) == []
