"""A thousand deferred tasks in one triggerer: what they cost while nothing happens, and how soon each fires.

Every stream is recorded as one that runs; its home is on a real S3 server, behind a proxy that counts. Then some of
them drain, one after the other, and the time from that event in the home to the trigger's own is taken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.objects import FeedWriter
from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol.events import Drained
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import StoreOptions
from benchmarks.recorded import DEPLOYMENT_ID, record, stream_name
from benchmarks.results import BenchmarkError, Result, Side
from benchmarks.session import Session

if TYPE_CHECKING:
    from support.s3_proxy import StrikingProxy

NAME = "deferred"
STREAMS, QUICK_STREAMS = 1_000, 100
SECONDS, QUICK_SECONDS = 300.0, 30.0
EVENTS, QUICK_EVENTS = 200, 20
EVENTS_PER_SECOND = 2.0
GOAL_MB, GOAL_CORES, GOAL_SECONDS, GOAL_CALLS_PER_MINUTE = 400, 1.0, 5.0, 1_500
DOLLARS_PER_CALL = {"ListObjectsV2": 5e-6, "PutObject": 5e-6, "GetObject": 4e-7, "HeadObject": 4e-7}
"""Of S3 in us-east-1, November 2026."""
MINUTES_PER_MONTH = 43_800


def run(session: Session) -> list[Result]:
    """Record the streams, defer, and let some drain; raises BenchmarkError where no real S3 server can be had."""
    streams, events = (QUICK_STREAMS, QUICK_EVENTS) if session.quick else (STREAMS, EVENTS)
    seconds = QUICK_SECONDS if session.quick else SECONDS
    driver = subprocess.Popen(["sleep", "86400"], start_new_session=True)
    try:
        with _proxied() as proxy:
            return [_measured(session, proxy, driver.pid, streams, seconds, events)]
    finally:
        driver.kill()
        driver.wait()


@contextmanager
def _proxied() -> Iterator[StrikingProxy]:
    from support import s3_server

    with s3_server.real_s3_server() as url:
        if "versitygw" not in s3_server.used:
            raise BenchmarkError("this is measured on versitygw, and there is no Go here to build it")
        with s3_server.striking_proxy(url) as proxy:
            yield proxy


def _measured(session: Session, proxy: StrikingProxy, pid: int, streams: int, seconds: float, events: int) -> Result:
    from support import s3_server

    launches = session.folder / NAME
    launches.mkdir(parents=True)
    options = StoreOptions(s3_server.options_for(f"http://{proxy.server}"))
    home = open_store(f"s3://{s3_server.BUCKET}/home", options=options)
    HomePresence(home, SYSTEM_CLOCK).begin("a benchmark")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: record(home, launches, stream_name(number), pid), range(streams)))
    extra = {
        "home_uri": f"s3://{s3_server.BUCKET}/home", "work_dir": str(launches), "region": s3_server.REGION,
        "endpoint_url": proxy.endpoint_url,
    }  # fmt: skip
    connection = {
        "conn_type": "streamstate", "login": s3_server.ACCESS_KEY, "password": s3_server.SECRET_KEY, "extra": extra,
    }  # fmt: skip
    with _triggerer(streams, seconds, json.dumps(connection)) as (said, process):
        ready = _next(said, "ready")
        proxy.forget()
        quiet = _next(said, "quiet")
        calls = proxy.operations
        session.say(
            f"  {streams} deferred: {quiet['cpu_seconds']:.1f} s of CPU, {calls.total()} calls in {seconds:.0f} s"
        )
        delays = sorted(_delays(home, said, streams, events))
        if process.stdin is not None:
            process.stdin.close()
    return _result(streams, seconds, ready, quiet, calls, delays)


@contextmanager
def _triggerer(streams: int, seconds: float, connection: str) -> Iterator[tuple[IO[str], subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.deferring", str(streams), str(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "AIRFLOW_CONN_STREAMSTATE_DEFAULT": connection},
    )  # fmt: skip
    try:
        if process.stdout is None:
            raise BenchmarkError("the process with the triggers has no output")
        yield process.stdout, process
    finally:
        process.kill()
        process.wait()


def _next(said: IO[str], what: str) -> dict[str, Any]:
    """The next line of this kind; raises BenchmarkError where the process has ended."""
    for line in said:
        if not line.startswith("{"):
            continue
        facts: dict[str, Any] = json.loads(line)
        if what in facts:
            return facts
        raise BenchmarkError(f"a trigger fired before its stream drained: {line}")
    raise BenchmarkError("the process with the triggers has ended")


def _delays(home: Store, said: IO[str], streams: int, events: int) -> list[float]:
    """Let every so manieth stream drain; seconds from each event to its trigger's."""
    feed = FeedWriter(home, SYSTEM_CLOCK)
    drained_at: dict[str, float] = {}

    def drain() -> None:
        for number in range(0, streams, streams // events):
            stream_id = stream_name(number)
            control = StreamControl(home, stream_id, SYSTEM_CLOCK, feed=feed)
            event = Drained(
                stream_id=stream_id, deployment_id=DEPLOYMENT_ID, attempt=1, at=SYSTEM_CLOCK.now(),
                write_id=SYSTEM_CLOCK.new_uuid(), command_id="c", command_number=1,
                snapshot_id=f"{DEPLOYMENT_ID}-drained-000001", queries={},
            )  # fmt: skip
            drained_at[stream_id] = SYSTEM_CLOCK.now().timestamp()
            control.journal(DEPLOYMENT_ID).append(event)
            SYSTEM_CLOCK.sleep(1 / EVENTS_PER_SECOND)

    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(drain)
        fired = [_next(said, "fired") for _ in range(len(range(0, streams, streams // events)))]
        draining.result()
    return [facts["at"] - drained_at[facts["fired"]] for facts in fired]


def _result(
    streams: int,
    seconds: float,
    ready: dict[str, Any],
    quiet: dict[str, Any],
    calls: Counter[str],
    delays: list[float],
) -> Result:
    per_minute = 60 * calls.total() / seconds
    dollars = (
        MINUTES_PER_MONTH
        * 60
        / seconds
        * sum(DOLLARS_PER_CALL.get(name, 5e-6) * count for name, count in calls.items())
    )
    p50, p99 = (delays[min(len(delays) - 1, round(share * (len(delays) - 1)))] for share in (0.5, 0.99))
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(calls.items()))
    memory_mb = max(float(ready["rss_mb"]), float(quiet["rss_mb"]))
    return Result(
        name=NAME,
        of=Side(f"{streams:,} deferred tasks, CPU of their triggers", float(quiet["cpu_seconds"]), "s"),
        against=Side("one core", seconds, "s"),
        ratio=100 * float(quiet["cpu_seconds"]) / seconds,
        ratio_means="% of it",
        goal=None,
        rounds=({**ready, **quiet, **calls}, *({"delay_seconds": delay} for delay in delays)),
        notes=(
            f"from the event in the home to the trigger's: median {p50:.2f} s, p99 {p99:.2f} s of {len(delays)};"
            f" the goal is {GOAL_SECONDS:g} s",
            f"requests to S3: {per_minute:.0f} a minute ({kinds}), {dollars:.0f} dollars a month; the goal is"
            f" {GOAL_CALLS_PER_MINUTE} a minute",
            f"memory of the whole process {memory_mb:.0f} MB, the goal is {GOAL_MB} MB; CPU of its start and first"
            f" looks {float(ready['first_cpu_seconds']):.0f} s",
        ),
    )
