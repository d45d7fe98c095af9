"""Adopting a real PySpark query whose checkpoint is on a real S3 server, as somebody else put it there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.store.options import EXCLUDES, s3_connector
from airflow_streamstate.store.s3 import s3_store
from support.foreign_query import SCRIPT, ForeignQuery
from support.launches import wait_until
from support.s3_server import BUCKET, options_for
from support.s3_stream import desk_on_s3
from support.shell import Desk, shell

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]


class QueryOnS3(ForeignQuery):
    """The same query, with its checkpoint in a bucket.

    Args:
        base: an empty folder, for all else.
        server_url: the server.
    """

    def __init__(self, base: Path, server_url: str) -> None:
        super().__init__(base)
        folder = f"{base.name}-mine/counts"
        self.place = f"s3://{BUCKET}/{folder}"
        self.store = s3_store(BUCKET, folder, options_for(server_url))
        own = SCRIPT.replace('base + "/mine/counts"', repr(f"s3a://{BUCKET}/{folder}"))
        assert own != SCRIPT
        self.app.write_text(own)
        told, connector = self.store.for_spark(), s3_connector(Path(pyspark.__file__).parent, {})
        brought = {"spark.jars.packages": ",".join(connector.packages), EXCLUDES: ",".join(connector.excludes)}
        self.conf |= {**told.conf, **told.secret_conf, **brought}

    def entries(self, folder: str) -> list[int]:
        names = (info.key.rpartition("/")[2] for info in self.store.list_objects(f"{folder}/"))
        return sorted(int(name) for name in names if name.isdigit())

    def files(self) -> dict[str, bytes]:
        found = {info.key: self.store.get(info.key) for info in self.store.list_objects("")}
        return {key: stored.body for key, stored in found.items() if stored is not None}


@pytest.fixture
def desk(tmp_path: Path, real_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home on S3 and nothing else; launches in a folder; no driver left afterwards."""
    with desk_on_s3(tmp_path, monkeypatch, real_url) as made:
        yield made


@pytest.fixture
def foreign(desk: Desk, real_url: str) -> Iterator[QueryOnS3]:
    """Somebody's query, that was never ours."""
    made = QueryOnS3(desk.base, real_url)
    yield made
    made.kill()


@pytest.mark.named
def test_a_running_query_meets_its_barrier_and_goes_on_in_a_home_on_s3(desk: Desk, foreign: QueryOnS3) -> None:
    """The batch in flight is committed by its own driver, which then ends; the next one is ours. (1a.3 on S3A)"""
    foreign.feed(2)
    foreign.start()
    foreign.wait_committed(1)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: foreign.adopt("--deadline", 200, "--timeout", 300))
        while not answer.done():
            foreign.feed(1)
            SYSTEM_CLOCK.sleep(3.0)
    found = answer.result()
    assert found.status == 0, (found, shell("logs", "totals").out[-4000:])
    query = found.json["adopted"]["queries"]["counts"]
    assert query["planned_batch_id"] is None
    assert foreign.entries("commits")[-1] == query["batch_id"]
    assert foreign.entries("offsets")[-1] == query["batch_id"] + 1, "the barrier"
    wait_until(foreign.has_ended, lambda: foreign.log, 60)
    foreign.finish()


@pytest.mark.named
def test_a_query_that_was_killed_in_a_batch_goes_on_with_that_batch(desk: Desk, foreign: QueryOnS3) -> None:
    """The planned batch runs again over its own bounds; the original is as it was but for the barrier (1a.6)."""
    foreign.feed(3)
    foreign.start()
    foreign.wait_committed(2)
    foreign.hold.touch()
    foreign.feed(1)
    wait_until(lambda: 3 in foreign.entries("offsets"), "batch 3 to be planned", 60)
    foreign.kill()
    foreign.hold.unlink()
    before = foreign.files()
    answer = foreign.adopt("--stopped", "--timeout", 300)
    assert answer.status == 0, (answer, shell("logs", "totals").out[-4000:])
    query = answer.json["adopted"]["queries"]["counts"]
    assert (query["batch_id"], query["planned_batch_id"]) == (2, 3)
    foreign.finish()
    assert {path: body for path, body in foreign.files().items() if path != "offsets/4"} == before
