"""Calls that a driver costs in an hour on Kubernetes: requests to S3, and to the API server; nothing else happens.

The home is on a real S3 server, the checkpoint in a folder, so that all requests there are ours and none is Spark's.
A stream runs, a watcher looks after it, then a controller waits for its end. Two proxies count what the driver and what
the others ask of S3; the API server's own audit reports what it was asked, and by which user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.home import HomeConfig
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import DeadlineExceededError
from airflow_streamstate.protocol.terms.version import LauncherChoice
from airflow_streamstate.store.options import S3Options, StoreOptions
from benchmarks.grounds import environment
from benchmarks.kubernetes_ground import Place, kubernetes_place
from benchmarks.results import BenchmarkError, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import MASTER, Drivers, Running, Streams

if TYPE_CHECKING:
    from support.s3_proxy import StrikingProxy

NAME = "calls-per-driver-hour"
STREAM = "delays"
SCRIPT = "delays_by_week.py"
QUERY = "delays"
START_SECONDS = 300.0
WARM_BATCH_ID = 3
WATCH_SECONDS, QUICK_WATCH_SECONDS = 300.0, 60.0
WAIT_SECONDS = 60.0
HOUR_SECONDS = 3600.0


@dataclass(frozen=True)
class Window:
    """What was asked within it, by kind.

    Attributes:
        of_driver, of_others: of S3.
        of_api: of the API server.
    """

    seconds: float
    of_driver: Counter[str]
    of_others: Counter[str]
    of_api: Counter[str]


def run(session: Session) -> list[Result]:
    """Count for some minutes; raises as ``kubernetes_place``, and where no real S3 server can be had."""
    source = session.flights()
    folder = session.folder / NAME
    with _proxies() as (of_driver, of_others), kubernetes_place(folder, (source,)) as place:
        counted = _Counted(place, of_driver, of_others)
        with _streams(place, of_driver, of_others, folder) as streams:
            running = streams.deploy(
                STREAM, SCRIPT, "--input", str(source), "--output", str(folder / "delays"),
                "--max-files-per-trigger", "1", "--every-seconds", "2",
            )  # fmt: skip
            running.wait_committed(QUERY, WARM_BATCH_ID, START_SECONDS)
            watched = _watched(running, counted, QUICK_WATCH_SECONDS if session.quick else WATCH_SECONDS)
            waited = _waited(running, counted)
    return _results(watched, waited)


@contextmanager
def _proxies() -> Iterator[tuple[StrikingProxy, StrikingProxy]]:
    from support import s3_server

    with s3_server.real_s3_server() as url:
        if "versitygw" not in s3_server.used:
            raise BenchmarkError("this is counted on versitygw, and there is no Go here to build it")
        with s3_server.striking_proxy(url) as of_driver, s3_server.striking_proxy(url) as of_others:
            yield of_driver, of_others


@contextmanager
def _streams(place: Place, of_driver: StrikingProxy, of_others: StrikingProxy, folder: Path) -> Iterator[Streams]:
    """The driver finds its proxy by the environment of its pod, this process by its own."""
    from support import s3_server

    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    keys = S3Options(access_key_id=s3_server.ACCESS_KEY, secret_access_key=s3_server.SECRET_KEY)
    home = HomeConfig(f"s3://{s3_server.BUCKET}/home", str(checkpoints), StoreOptions(keys), str(folder / "launches"))
    options = {**place.options, "pod_template": place.template_with(_variables(of_driver))}
    drivers = Drivers(LauncherChoice("kubernetes", options), MASTER)
    with environment(_variables(of_others)), Streams(home, drivers) as streams:
        yield streams


def _variables(proxy: StrikingProxy) -> dict[str, str]:
    from support import s3_server

    return {
        "AWS_ENDPOINT_URL_S3": proxy.endpoint_url,
        "AWS_REGION": s3_server.REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class _Counted:
    def __init__(self, place: Place, of_driver: StrikingProxy, of_others: StrikingProxy) -> None:
        self._place, self._of_driver, self._of_others = place, of_driver, of_others
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self._of_driver.forget()
        self._of_others.forget()
        self._before = self._place.cluster.requests()
        self._began = SYSTEM_CLOCK.monotonic_seconds()

    def end(self) -> Window:
        """What was asked since."""
        seconds = SYSTEM_CLOCK.monotonic_seconds() - self._began
        asked = self._place.cluster.requests() - self._before
        return Window(seconds, self._of_driver.operations, self._of_others.operations, asked)


def _watched(running: Running, counted: _Counted, seconds: float) -> Window:
    said: list[str] = []
    watcher = running.controller.watcher(lambda line: said.append(line.text))
    watcher.tick()  # the first pass reads all there is
    if watcher.sights != {STREAM: "up"}:
        raise BenchmarkError(f"the stream is not up: {said}")
    counted.begin()
    until = SYSTEM_CLOCK.monotonic_seconds() + seconds
    watcher.run(lambda: SYSTEM_CLOCK.monotonic_seconds() >= until)
    return counted.end()


def _waited(running: Running, counted: _Counted) -> Window:
    counted.begin()
    try:
        running.controller.wait(WaitCondition("finished", running.stream_id, running.deployment_id), WAIT_SECONDS)
    except DeadlineExceededError:
        return counted.end()
    raise BenchmarkError(f"the stream has ended\n{running.log_tail()}")


def _results(watched: Window, waited: Window) -> list[Result]:
    driver = _in_an_hour(watched.of_driver + waited.of_driver, watched.seconds + waited.seconds)
    watcher, wait = _in_an_hour(watched.of_others, watched.seconds), _in_an_hour(waited.of_others, waited.seconds)
    asked, asked_waiting = _in_an_hour(watched.of_api, watched.seconds), _in_an_hour(waited.of_api, waited.seconds)
    rounds: tuple[dict[str, Number], ...] = tuple(
        {
            "what": what,
            "seconds": window.seconds,
            "driver_requests": _kinds(window.of_driver),
            "others_requests": _kinds(window.of_others),
            "api_requests": _kinds(window.of_api),
        }
        for what, window in (("a watcher", watched), ("a controller that waits", waited))
    )
    both = sum(driver.values()) + sum(watcher.values())
    return [
        _result(
            "store",
            Side("requests to S3 in an hour, a driver and its watcher", both, "requests"),
            rounds,
            f"the driver {_kinds(driver)}",
            f"the watcher {_kinds(watcher)}",
            f"in addition, a controller that waits all the time: {_kinds(wait)}",
        ),
        _result(
            "api",
            Side("requests to the API server in an hour, the same", sum(asked.values()), "requests"),
            rounds,
            f"by user, verb and resource: {_kinds(asked)}",
            f"with a controller that waits all the time instead of the watcher: {_kinds(asked_waiting)}",
        ),
    ]


def _result(kind: str, of: Side, rounds: tuple[Mapping[str, Number], ...], *notes: str) -> Result:
    hour = Side("one driver for an hour", 1, "driver-hour")
    return Result(f"{NAME}: {kind}", of, hour, of.value, "an hour", None, rounds, notes)


def _in_an_hour(counted: Counter[str], seconds: float) -> dict[str, float]:
    return {name: number * HOUR_SECONDS / seconds for name, number in sorted(counted.items())}


def _kinds(counted: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.0f}" for name, number in sorted(counted.items())) or "none"
