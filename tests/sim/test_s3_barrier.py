"""Barriers where Spark claims by an unconditional copy, as on S3A: an overwritten one is put again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_streamstate.checkpoint.barrier import (
    BarrierPlacement,
    Placed,
    Step,
    Uncertain,
    exchange_for_drain,
    put_fence,
)
from airflow_streamstate.checkpoint.fork import checkpoint_uri, fork, wipe
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.repair import Clean, repair_before_start
from airflow_streamstate.checkpoint.state_files import files_of
from airflow_streamstate.errors import VersionConflictError
from airflow_streamstate.store.s3 import s3_store
from support.checkpoints import QUERY_ID, barrier_mark
from support.fake_clock import FakeClock
from support.s3_proxy import StrikingProxy
from support.s3_requests import S3Request
from support.s3_server import BUCKET, options_for
from support.s3a_query import S3AQuery

pytestmark = pytest.mark.full

STRIKES = 60
ROUNDS = 8


@pytest.fixture
def checkpoints(s3_proxy: StrikingProxy) -> Iterator[Checkpoint]:
    """New checkpoints behind the proxy, with S3A's directory markers, one after the other."""

    def made() -> Iterator[Checkpoint]:
        for number in range(10_000):
            clock = FakeClock(seed=number)
            prefix = f"barrier-{s3_proxy.endpoint_url.rpartition(':')[2]}-{number}"
            store = s3_store(BUCKET, prefix, options_for(s3_proxy.endpoint_url), clock=clock)
            checkpoint = Checkpoint(store, "orders/deployments/d-0001/checkpoints/counts")
            store.put(checkpoint.metadata_key, json.dumps({"id": QUERY_ID}).encode())
            for folder in ("offsets", "commits"):
                name = f"{prefix}/{checkpoint.key(folder)}/"
                store.client.boto.put_object(Bucket=BUCKET, Key=name, Body=b"")
            yield checkpoint

    return made()


def run(query: S3AQuery, last: int) -> None:
    """Up to and including the commit of this batch."""
    if not query.initialised:
        query.initialise()
    while not query.ran or query.ran[-1] < last:
        query.act(query.actions()[0])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("behind", [0, 1, 3])
def test_a_barrier_struck_in_the_window_is_always_put_again(
    checkpoints: Iterator[Checkpoint], s3_proxy: StrikingProxy, behind: int
) -> None:
    """Put right before the forwarded copy that claims its place: never taken for placed, and put again (1a.3).

    Struck in ``behind + 1`` claims on end.
    """
    for _ in range(STRIKES // 3):
        checkpoint = next(checkpoints)
        query = S3AQuery(checkpoint)
        run(query, 1)
        placement = BarrierPlacement(checkpoint, barrier_mark(), query)
        struck: list[Step] = []

        def strike(request: S3Request, placement: BarrierPlacement = placement, struck: list[Step] = struck) -> None:
            is_claim = "/offsets/" in request.key and request.operation == "CopyObject"
            if is_claim and len(struck) <= behind:
                s3_proxy.hooks.clear()  # our own requests pass
                struck.append(placement.step())
                s3_proxy.hooks.append(strike)

        s3_proxy.hooks.append(strike)
        run(query, 2 + behind)
        s3_proxy.hooks.clear()
        assert struck == [Uncertain(1 + number, 2 + number) for number in range(behind + 1)]
        final = placed(placement, query)
        assert checkpoint.position().batch_id == final.batch_id
        assert checkpoint.offset_ids()[-1] == final.barrier_id
        for _ in range(ROUNDS):
            if query.actions():
                query.act(query.actions()[0])
        assert query.ended
        assert query.ran == list(range(final.barrier_id))


def placed(placement: BarrierPlacement, query: S3AQuery) -> Placed:
    """Step, and let the query act in between, until it is placed."""
    for _ in range(40):
        step = placement.step()
        if isinstance(step, Placed):
            return step
        if query.actions():
            query.act(query.actions()[0])
    raise AssertionError("it was never placed")


def test_what_an_interrupted_query_leaves_is_in_nobodys_way(checkpoints: Iterator[Checkpoint]) -> None:
    """Temp files, directory markers and missing checksums: position, files, repair and fork do without (1a.7)."""
    checkpoint = next(checkpoints)
    query = S3AQuery(checkpoint)
    query.interrupted = True
    run(query, 3)
    assert checkpoint.position().batch_id == 3
    listed = files_of(checkpoint, checkpoint.position())
    assert [key for key in listed if ".tmp" in key or key.endswith("/") or key.endswith(".crc")] == []
    assert repair_before_start(checkpoint, "d-0001").found == Clean(3)
    target = Checkpoint(checkpoint.store, "orders/deployments/d-0002/checkpoints/counts")
    fork(checkpoint.store, {key[len(checkpoint.prefix) + 1 :]: key for key in listed}, target)
    assert target.position().batch_id == 3
    assert checkpoint_uri(target).startswith(f"s3a://{BUCKET}/barrier-")
    wipe(target)
    assert list(target.store.list_objects(f"{target.prefix}/")) == []
    empty = next(checkpoints)
    empty.store.put(empty.key("offsets/.0.3f0a-0.tmp"), b"")
    assert repair_before_start(empty, "d-0001").swept_keys == (empty.key("offsets/.0.3f0a-0.tmp"),)


def test_a_zombie_can_take_back_a_fence_once_and_is_found(checkpoints: Iterator[Checkpoint]) -> None:
    """A driver paused between look and copy overwrites the fence and runs one more batch: its log shows it (1a.8)."""
    checkpoint = next(checkpoints)
    query = S3AQuery(checkpoint)
    run(query, 2)
    while not query._looked:
        query.act(query.actions()[0])
    assert put_fence(checkpoint, barrier_mark("fence")) == 3
    run(query, 3)
    assert checkpoint.position().batch_id == 3  # the audit of the successor compares it with what it took
    # A fence that is put again ends it.
    assert put_fence(checkpoint, barrier_mark("fence")) == 4
    while query.actions():
        query.act(query.actions()[0])
    assert query.ran == [0, 1, 2, 3]


def test_an_exchange_never_goes_over_what_came_late(checkpoints: Iterator[Checkpoint], s3_proxy: StrikingProxy) -> None:
    """From stop to drain the entry is replaced only as it was read: a copy that lands late is a conflict (1a.5)."""
    checkpoint = next(checkpoints)
    query = S3AQuery(checkpoint)
    run(query, 2)
    query.act("end_trigger")
    assert BarrierPlacement(checkpoint, barrier_mark(), query).step() == Placed(2, 3, barrier_mark())

    def land_late(request: S3Request) -> None:
        if request.method == "PUT" and "if-match" in request.headers:
            s3_proxy.hooks.clear()
            query.rename()

    s3_proxy.hooks.append(land_late)
    with pytest.raises(VersionConflictError):
        exchange_for_drain(checkpoint, barrier_mark("drain"))
    entry = checkpoint.read_offset(3)
    assert entry is not None
    assert not entry.is_ours
    assert checkpoint.position().planned_id == 3  # and the flush does not start
