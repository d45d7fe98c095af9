"""A home in a bucket that is deleted, recreated, or forbidden while a process uses it."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest

from airflow_streamstate.control.presence import SEEN_SECONDS, GuardedHome, HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import HomeAwayError, HomeNotFoundError, StoreRefusedError
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.s3 import s3_store
from support.fake_clock import FakeClock
from support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, options_for
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script

BUCKET = "home-that-vanishes"


class Bucket:
    """One bucket of moto's, and what an operator does to it."""

    def __init__(self, endpoint_url: str) -> None:
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint_url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        self.endpoint_url = endpoint_url
        self.kept: dict[str, bytes] = {}
        self.client.create_bucket(Bucket=BUCKET)

    def keys(self) -> list[str]:
        return [item["Key"] for item in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", ())]

    def delete(self) -> None:
        """With all that is in it."""
        for key in self.keys():
            self.kept[key] = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            self.client.delete_object(Bucket=BUCKET, Key=key)
        self.client.delete_bucket(Bucket=BUCKET)

    def make(self) -> None:
        """Empty."""
        self.client.create_bucket(Bucket=BUCKET)

    def bring_back(self) -> None:
        """All that was in it."""
        for key, body in self.kept.items():
            self.client.put_object(Bucket=BUCKET, Key=key, Body=body)


@pytest.fixture
def bucket(moto_url: str) -> Iterator[Bucket]:
    made = Bucket(moto_url)
    yield made
    made.kept.clear()
    try:
        made.delete()
    except made.client.exceptions.NoSuchBucket:
        return


def test_a_bucket_that_is_gone_or_made_again_is_no_home(bucket: Bucket) -> None:
    """Neither is anything believed to be absent in it, nor is anything written into the new one."""
    clock = FakeClock()
    store = s3_store(BUCKET, "streams", options_for(bucket.endpoint_url), clock=clock)
    presence = HomePresence(store, clock)
    presence.begin("tests")
    guarded = GuardedHome(presence)
    guarded.put("a/b", b"1")
    bucket.delete()
    clock.sleep(SEEN_SECONDS)
    for act in (lambda: guarded.get("a/b"), lambda: guarded.put("a/b", b"2"), lambda: guarded.delete("a/b")):
        with pytest.raises(HomeAwayError, match="no such bucket"):
            act()
    with pytest.raises(StoreRefusedError, match="no such bucket"):
        HomePresence(store, clock).need()
    bucket.make()
    for act in (lambda: guarded.get("a/b"), lambda: guarded.put("a/b", b"2"), lambda: guarded.list_folders("a")):
        with pytest.raises(HomeAwayError, match="empty"):
            act()
    with pytest.raises(HomeNotFoundError):
        HomePresence(store, clock).need()
    assert bucket.keys() == []
    bucket.bring_back()
    found = guarded.get("a/b")
    assert found is not None
    assert found.body == b"1"


def test_a_driver_outlives_its_bucket(bucket: Bucket) -> None:
    """Deleted, made again empty, and brought back: the queries run on, no sign of life starts a new home, and what is
    ordered when all is there again is obeyed. (Law 4)"""
    stream = SimulatedStream(checkpoints=MemoryStore("checkpoints"))
    store = s3_store(BUCKET, "streams", options_for(bucket.endpoint_url), clock=stream.clock)
    stream.home = store
    HomePresence(store, stream.clock).begin("tests")
    stream.deploy()
    left: list[list[str]] = []
    stream.clock.after(20.0, bucket.delete)
    stream.clock.after(80.0, bucket.make)
    stream.clock.after(140.0, lambda: left.append(bucket.keys()))
    stream.clock.after(140.5, bucket.bring_back)
    stream.order_at(160.0, StopRequest)
    plan = make_plan(300)
    control = StreamControl(store, STREAM, stream.clock)
    assert SimulatedDriver(stream, control=control).run(waiting_script(plan)) == 0
    assert left == [[]]
    assert stream.kinds()[-1] == "Stopped"
    assert sum(plan.sink.counts().values()) >= 280
