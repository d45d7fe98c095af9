"""Snapshot of 1 GB on S3: what comes through us, requests per object, and its seconds against two other ways to copy.

The checkpoint is laid out as Spark leaves it with RocksDB, without Spark: a capture knows files and no rows. It is
timed without anything in between and counted by a proxy in a separate turn, as the first snapshot of a stream, which
has none to share files with; the other copies are made by boto3 in as many threads. Then one file of state in a hundred
becomes another, and a second snapshot is counted, which shares the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.s3 import s3_store
from benchmarks.results import Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.written_state import DEPLOYMENT, QUERY, WrittenState

NAME = "s3-snapshot"
STREAM = "orders"
FILES, QUICK_FILES = 100, 20
ROUNDS, QUICK_ROUNDS = 3, 1
GOAL_REQUESTS = 1.1
GOAL_MOVED = 1.05
FIRST, SECOND = "d-0001-live-000001", "d-0001-live-000002"
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
                f"{found['through_seconds']:.2f} s, by the server object for object {found['copy_seconds']:.2f} s; "
                f"the next moved {found['moved_bytes'] / 1e6:.2f} MB for {found['changed_bytes'] / 1e6:.2f} MB changed"
            )
        return _results(rounds, server)


@contextmanager
def _servers() -> Iterator[tuple[Any, str, str]]:
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
        self._store = s3_store(self._bucket, NAME, options)
        self._counted = s3_store(self._bucket, NAME, s3_server.options_for(proxy.endpoint_url))
        self._client = boto3.client(
            "s3",
            region_name=options.region,
            endpoint_url=server_url,
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
        )
        folder = layout.checkpoint_folder(STREAM, DEPLOYMENT, QUERY)
        self._state = WrittenState(self._store, folder, files, with_checksums=False)
        self._checkpoint = self._state.checkpoint

    def round(self, number: int) -> dict[str, Any]:
        """One snapshot that is timed and one that is counted, and the two other copies of the same objects."""
        found: dict[str, Any] = {}
        ways: list[Callable[[], dict[str, Any]]] = [
            lambda: self._timed(number), lambda: self._through(number), lambda: self._by_server(number)
        ]  # fmt: skip
        for way in ways if number % 2 else reversed(ways):
            found |= way()
        found |= self._count(number)
        found |= self._count_second(number)
        for kind in ("timed", "counted"):
            self._store.delete_many([info.key for info in self._store.list_objects(f"{kind}-{number}/")])
        return found

    def _timed(self, number: int) -> dict[str, Any]:
        began = SYSTEM_CLOCK.monotonic_seconds()
        manifest = self._state.capture(f"timed-{number}", FIRST)
        seconds = SYSTEM_CLOCK.monotonic_seconds() - began
        return {
            "snapshot_seconds": seconds,
            "objects": sum(len(query.files) for query in manifest.queries.values()),
            "size_bytes": manifest.size_bytes,
        }

    def _count(self, number: int) -> dict[str, Any]:
        self._proxy.forget()
        self._state.capture(f"counted-{number}", FIRST, self._counted)
        return {
            "requests": len(self._proxy.seen),
            "bytes_through": self._proxy.bytes_through,
            "operations": ", ".join(f"{name} {count}" for name, count in sorted(self._proxy.operations.items())),
            "server_bytes": self._bytes_copied(self._sizes()),
        }

    def _count_second(self, number: int) -> dict[str, Any]:
        """A snapshot of the batch that comes after one file of state in a hundred has become another."""
        before = self._sizes()
        self._state.change()
        after = self._sizes()
        self._proxy.forget()
        manifest = self._state.capture(f"counted-{number}", SECOND, self._counted)
        held = {self._checkpoint.key(entry.path) for query in manifest.queries.values() for entry in query.files}
        return {
            "changed_bytes": sum(size for key, size in after.items() if key in held and key not in before),
            "moved_bytes": self._bytes_copied(after) + self._proxy.bytes_through,
            "second_requests": len(self._proxy.seen),
        }

    def _sizes(self) -> dict[str, int]:
        """Every object of the checkpoint; each is written once."""
        return {info.key: info.size_bytes for info in self._store.list_objects(f"{self._checkpoint.prefix}/")}

    def _bytes_copied(self, sizes: dict[str, int]) -> int:
        """What the server copied of the checkpoint since the proxy started to count."""
        sources = [r.copy_source for r in self._proxy.seen if r.operation == "CopyObject"]
        return sum(sizes.get(source.removeprefix(f"{self._bucket}/{NAME}/"), 0) for source in sources)

    def _through(self, number: int) -> dict[str, Any]:
        """Every object read and written again by this process."""

        def copy(key: str) -> None:
            body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
            self._client.put_object(Bucket=self._bucket, Key=f"through-{number}/{key}", Body=body)

        return {"through_seconds": self._all(copy, f"through-{number}/")}

    def _by_server(self, number: int) -> dict[str, Any]:
        """As ``aws s3 cp --recursive`` within a server: a HEAD and a copy for each object."""

        def copy(key: str) -> None:
            self._client.copy({"Bucket": self._bucket, "Key": key}, self._bucket, f"copied-{number}/{key}")

        return {"copy_seconds": self._all(copy, f"copied-{number}/")}

    def _all(self, copy: Callable[[str], None], target: str) -> float:
        paths = [f"state/0/0/SSTs/{name}" for name in self._state.names]
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
    moved = median(found["moved_bytes"] / found["changed_bytes"] for found in rounds)
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
                f"the server copied {middle['server_bytes'] / 1e6:,.0f} MB for each",
            ),
        ),
        Result(
            name=f"{NAME}: second",
            of=Side("moved by the next snapshot", middle["moved_bytes"] / 1e6, "MB"),
            against=Side("changed before it", middle["changed_bytes"] / 1e6, "MB"),
            ratio=moved,
            ratio_means="of what was changed",
            goal=Goal("the changed bytes and 5 %", moved, "<=", GOAL_MOVED, "of them"),
            rounds=numbers,
            notes=(
                f"one file of {size} of state had become another; {middle['second_requests']:.0f} requests; moved is "
                "what the server copied and everything that came through us, lists and manifests among it",
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
