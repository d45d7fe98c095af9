"""Snapshot of 1 GB on S3: what comes through us, requests per object, and its seconds beside two other ways to copy.

The checkpoint is laid out as Spark leaves it with RocksDB, without Spark: a capture knows files and no rows. It is
timed without anything in between and counted by a proxy in a turn of its own; the other copies are made by boto3 in as
many threads. Before each further snapshot one file of state in a hundred is another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.store.s3 import S3Store
from benchmarks.results import Goal, Number, Result, Side
from benchmarks.session import Session

NAME = "s3-snapshot"
STREAM, DEPLOYMENT, QUERY = "orders", "d-0001", "counts"
FILES, QUICK_FILES = 100, 20
FILE_BYTES = 10_000_000
ROUNDS, QUICK_ROUNDS = 3, 1
GOAL_REQUESTS = 1.1
COPIES_AT_ONCE = 16


def run(session: Session) -> list[Result]:
    """Write the checkpoint once, then take snapshots and make the other copies in turns."""
    with _servers() as (proxy, server_url, server):
        bench = _Bench(proxy, server_url, QUICK_FILES if session.quick else FILES)
        rounds = []
        for number in range(1, (QUICK_ROUNDS if session.quick else ROUNDS) + 1):
            found = bench.round(number)
            rounds.append(found)
            session.say(
                f"  snapshot {number}: {found['snapshot_seconds']:.2f} s for {found['objects']} objects, "
                f"{found['requests']} requests, {found['bytes_through']:,} bytes through us; through boto3 "
                f"{found['through_seconds']:.2f} s, by the server object for object {found['copy_seconds']:.2f} s"
            )
        return _results(rounds, server)


@contextmanager
def _servers() -> Iterator[tuple[Any, str, str]]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from support import s3_server

    with s3_server.real_s3_server() as url, s3_server.striking_proxy(url) as proxy:
        yield proxy, url, "versitygw" if "versitygw" in s3_server.used else "moto"


class _Bench:
    def __init__(self, proxy: Any, server_url: str, files: int) -> None:
        import boto3

        from support import s3_server

        options = s3_server.options_for(server_url)
        self._bucket = s3_server.BUCKET
        self._proxy = proxy
        self._store = S3Store(self._bucket, NAME, options)
        self._counted = S3Store(self._bucket, NAME, s3_server.options_for(proxy.endpoint_url))
        self._client = boto3.client(
            "s3",
            region_name=options.region,
            endpoint_url=server_url,
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
        )
        self._checkpoint = Checkpoint(self._store, layout.checkpoint_folder(STREAM, DEPLOYMENT, QUERY))
        self._names: list[str] = []
        self._write(files)

    def round(self, number: int) -> dict[str, Any]:
        """One snapshot that is timed and one that is counted, and the two other copies of the same objects."""
        if number > 1:
            self._change(number)
        found: dict[str, Any] = {"server_bytes": 0}
        ways: list[Callable[[], dict[str, Any]]] = [
            lambda: self._timed(number), lambda: self._through(number), lambda: self._by_server(number)
        ]  # fmt: skip
        for way in ways if number % 2 else reversed(ways):
            found |= way()
        found |= self._count(number)
        return found

    def _write(self, files: int) -> None:
        from support.checkpoints import commit_batch, plan_batch, write_operator_metadata

        self._store.put(self._checkpoint.metadata_key, b'{"id":"859f4a6f-435c-47ba-9a05-e59c7df04d99"}')
        write_operator_metadata(self._checkpoint, partitions=1)
        self._names = [f"{number:06d}-u{number}.sst" for number in range(files)]
        for name in self._names:
            self._store.put(self._checkpoint.key(f"state/0/0/SSTs/{name}"), os.urandom(FILE_BYTES))
        self._write_version(1)
        plan_batch(self._checkpoint, 0)
        commit_batch(self._checkpoint, 0)
        self._without_checksum_files()

    def _change(self, number: int) -> None:
        """One more batch, for which RocksDB has merged one file anew."""
        from support.checkpoints import commit_batch, plan_batch

        name = f"{900_000 + number:06d}-u{number}.sst"
        self._names[number] = name
        self._store.put(self._checkpoint.key(f"state/0/0/SSTs/{name}"), os.urandom(FILE_BYTES))
        self._write_version(number)
        plan_batch(self._checkpoint, number - 1)
        commit_batch(self._checkpoint, number - 1)
        self._without_checksum_files()

    def _write_version(self, version: int) -> None:
        from support.checkpoints import rocksdb_zip

        self._store.put(self._checkpoint.key(f"state/0/0/{version}.zip"), rocksdb_zip(self._names))

    def _without_checksum_files(self) -> None:
        """S3A leaves none."""
        infos = self._store.list_objects(f"{self._checkpoint.prefix}/")
        self._store.delete_many([info.key for info in infos if info.key.endswith(".crc")])

    def _capture(self, store: S3Store, snapshot_id: str) -> SnapshotManifest:
        checkpoint = Checkpoint(store, self._checkpoint.prefix)
        return capture(
            StreamControl(store, STREAM, SYSTEM_CLOCK), store, snapshot_id=snapshot_id, snapshot_kind="live",
            deployment_id=DEPLOYMENT, attempt=1, fencing_token=1, taken_by="agent",
            queries={QUERY: QueryToCapture(checkpoint)},
        )  # fmt: skip

    def _timed(self, number: int) -> dict[str, Any]:
        began = SYSTEM_CLOCK.monotonic_seconds()
        manifest = self._capture(self._store, f"d-0001-live-{2 * number:06d}")
        seconds = SYSTEM_CLOCK.monotonic_seconds() - began
        return {
            "snapshot_seconds": seconds,
            "objects": sum(len(query.files) for query in manifest.queries.values()),
            "size_bytes": manifest.size_bytes,
        }

    def _count(self, number: int) -> dict[str, Any]:
        self._proxy.forget()
        manifest = self._capture(self._counted, f"d-0001-live-{2 * number + 1:06d}")
        sizes = {entry.path: entry.size_bytes for entry in manifest.queries[QUERY].files}
        copied = [r.copy_source for r in self._proxy.seen if r.operation == "CopyObject"]
        prefix = f"{self._bucket}/{NAME}/{self._checkpoint.prefix}/"
        return {
            "requests": len(self._proxy.seen),
            "bytes_through": self._proxy.bytes_through,
            "operations": ", ".join(f"{name} {count}" for name, count in sorted(self._proxy.operations.items())),
            "server_bytes": sum(sizes.get(source.removeprefix(prefix), 0) for source in copied),
        }

    def _through(self, number: int) -> dict[str, Any]:
        """Every object read and written again by this process."""

        def copy(key: str) -> None:
            body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
            self._client.put_object(Bucket=self._bucket, Key=f"through-{number}/{key}", Body=body)

        return {"through_seconds": self._all(copy, f"through-{number}/")}

    def _by_server(self, number: int) -> dict[str, Any]:
        """As ``aws s3 cp --recursive`` within a server: a look and a copy for each object."""

        def copy(key: str) -> None:
            self._client.copy({"Bucket": self._bucket, "Key": key}, self._bucket, f"copied-{number}/{key}")

        return {"copy_seconds": self._all(copy, f"copied-{number}/")}

    def _all(self, copy: Callable[[str], None], target: str) -> float:
        paths = [f"state/0/0/SSTs/{name}" for name in self._names]
        keys = [f"{NAME}/{self._checkpoint.key(path)}" for path in paths]
        began = SYSTEM_CLOCK.monotonic_seconds()
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            list(pool.map(copy, keys))
        seconds = SYSTEM_CLOCK.monotonic_seconds() - began
        for key in keys:
            self._client.delete_object(Bucket=self._bucket, Key=f"{target}{key}")
        return seconds


def _results(rounds: list[dict[str, Any]], server: str) -> list[Result]:
    middle = {name: median(found[name] for found in rounds) for name in rounds[0] if name != "operations"}
    numbers: tuple[dict[str, Number], ...] = tuple(dict(found) for found in rounds)
    size = f"{middle['size_bytes'] / 1e6:,.0f} MB"
    per_object = middle["requests"] / middle["objects"]
    return [
        Result(
            name=f"{NAME}: requests",
            of=Side(f"requests for a snapshot of {size}", middle["requests"], "requests"),
            against=Side("its objects", middle["objects"], "objects"),
            ratio=per_object,
            ratio_means="per object",
            goal=Goal("1.1 requests for an object", per_object, "<=", GOAL_REQUESTS, "requests"),
            rounds=numbers,
            notes=(
                f"{middle['bytes_through']:,.0f} bytes came through us: logs, lists, manifests, no state; "
                f"the last: {rounds[-1]['operations']}",
                f"the server copied {middle['server_bytes'] / 1e6:,.0f} MB for each, also for those before which 1 % "
                "of the state had become another: a snapshot on S3 shares nothing with an older one",
            ),
        ),
        Result(
            name=f"{NAME}: seconds",
            of=Side(f"snapshot of {size} by {server}", middle["snapshot_seconds"], "s"),
            against=Side("download and upload by boto3", middle["through_seconds"], "s"),
            ratio=middle["through_seconds"] / middle["snapshot_seconds"],
            ratio_means="times as fast",
            goal=None,
            rounds=numbers,
            notes=(
                f"a copy within the server, object for object as `aws s3 cp --recursive` makes it, "
                f"{COPIES_AT_ONCE} at once: {middle['copy_seconds']:.2f} s; both read and write on the same disk here, "
                "so the client's way has no network to lose time on",
            ),
        ),
    ]
