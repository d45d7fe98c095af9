"""One stream on this machine, on YARN and in pods: moved, killed in every way, restarted by a watcher, drained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.protocol.layout import checkpoint_folder
from support.cluster_stream import WAIT
from support.flights import JOBS, Flights, counts, counts_of
from support.kube_stage import KubernetesStage
from support.launches import wait_until
from support.progress import files_read, wait_read
from support.quick_jvm import OPTIONS
from support.shell import Desk, done, shell
from support.watching import WatchProcess, watching
from support.yarn_cluster import YarnCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
FILES = 9
LOST_AFTER_SECONDS = 10.0
MINUTE_SECONDS = 65.0
"""For this long a control plane is away; a watcher looks at a driver elsewhere at least once a minute."""
QUICK = (
    *("--conf", "spark.driver.memory=600m", "--conf", f"spark.driver.extraJavaOptions={OPTIONS}"),
    *("--conf", "spark.sql.streaming.pollingDelay=50ms", "--conf", "spark.log.level=WARN"),
)
POLICY = (
    *("--on-failure", "restart", "--initial-backoff", 0),
    *("--setting", f"lost_after_seconds={LOST_AFTER_SECONDS:g}", "--setting", "heartbeat_seconds=1"),
)


@dataclass(frozen=True)
class Moment:
    """A moment of the stream: its status, every launch and claim, and how many lines its watcher had printed."""

    status: dict[str, Any]
    launched: list[str]
    lines: int


class Life:
    """The stream, seen as any person sees it: by the shell."""

    def __init__(self, desk: Desk, flights: Flights, watcher: WatchProcess) -> None:
        self._home, self._flights, self._watcher = desk.home, flights, watcher
        self.lines = flights.feed()
        self._files = 1

    def status(self) -> dict[str, Any]:
        """What ``status`` reports, also of a stream that has just failed."""
        return shell("status", "flights", "--json").json

    def feed(self) -> None:
        """The next flights arrive."""
        self.lines += self._flights.feed()
        self._files += 1

    def wait_read(self) -> None:
        """Wait until all that have arrived are counted."""
        wait_read(self._checkpoint(self.status()), self._files, self._log)

    def upgrade(self, *words: object) -> dict[str, Any]:
        """To this version, warm; more flights arrive, and are read by it."""
        found = done("upgrade", "flights", *words, *WAIT)
        assert (found["outcome"], found["driver"], found["audit_ok"]) == ("upgraded", "waits", True), found
        self.feed()
        self.wait_read()
        return found

    def wait_restarted(self, before: dict[str, Any]) -> None:
        """Wait until the watcher has started the next attempt, and it has read what has arrived since."""
        self.feed()

        def is_next() -> bool:
            now = self.status()
            return (now["attempt"], now["state"]) == (before["attempt"] + 1, "running")

        wait_until(is_next, lambda: f"{self.status()}\n{self._watcher.path.read_text()}", 240)
        self.wait_read()

    def moment(self) -> Moment:
        """What is there now."""
        return Moment(self.status(), self._launched(), len(self._watcher.lines))

    def work_unasked(self, since: Moment, seconds: float) -> None:
        """Its driver cannot be asked about, for this long: all the time it runs by its heartbeats, and watchers leave
        it alone; what arrives is read."""
        wait_until(lambda: "unknown" in self._same(since)["driver"], lambda: str(self.status()), 90)
        self.feed()
        until = SYSTEM_CLOCK.monotonic_seconds() + seconds
        while SYSTEM_CLOCK.monotonic_seconds() < until:
            assert "unknown" in self._same(since)["driver"]
            assert shell("watch", "--once").status == 0
            SYSTEM_CLOCK.sleep(1.0)
        assert files_read(self._checkpoint(since.status)) == self._files, "it has not worked in the meantime"

    def wait_asked_again(self, since: Moment) -> None:
        """Wait until its driver can be asked again: it is the same, nothing was launched, and no restart is counted."""
        wait_until(lambda: "unknown" not in self._same(since)["driver"], lambda: str(self.status()), 120)
        assert self._launched() == since.launched
        assert self.status()["restarts"] == since.status["restarts"]
        assert {line["sight"] for line in self._watcher.lines[since.lines :]} <= {"up"}

    def _same(self, since: Moment) -> dict[str, Any]:
        """What ``status`` reports: the same attempt runs. Where it cannot be asked about, its heartbeat shows it."""
        now, before = self.status(), since.status
        found = (now["deployment_id"], now["attempt"], now["state"])
        assert found == (before["deployment_id"], before["attempt"], "running"), now
        return now

    def _launched(self) -> list[str]:
        """Every launch and every claim so far."""
        return sorted(str(path) for name in ("launches", "claims") for path in self._home.rglob(f"{name}/*"))

    def _checkpoint(self, status: dict[str, Any]) -> Path:
        return self._home / checkpoint_folder("flights", status["deployment_id"], "delays")

    def _log(self) -> str:
        return shell("logs", "flights").out[-4000:]


def test_one_stream_lives_on_this_machine_on_yarn_and_in_pods(
    desk: Desk, yarn: YarnCluster, place: KubernetesStage
) -> None:
    """It moves warm, and is upgraded warm. What a person ends by YARN's or Kubernetes' own API continues by itself. A
    ResourceManager and an API server that are away for a minute, and a node whose kubelet is dead, leave it unknown and
    working, never restarted. Every flight is counted once. (Laws 1, 2, 9 and 12; 1a.8)"""
    cluster = place.cluster
    flights = Flights(desk.base / "flights", FILES)
    with watching(desk.base / "watch.out") as watcher:
        life = Life(desk, flights, watcher)
        local = ("--app", JOBS / "count_by_origin.py", "--master", "local[2]", *QUICK, *POLICY, *WAIT)
        done("deploy", "flights", *local, "--", *flights.arguments)

        life.upgrade(*yarn.words())
        before = life.status()
        (application_id,) = yarn.running()
        assert application_id in before["driver"]
        yarn.kill_application(application_id)
        life.wait_restarted(before)
        (application_id,) = yarn.running()
        moment = life.moment()
        yarn.kill_resource_manager()
        life.work_unasked(moment, MINUTE_SECONDS)
        yarn.start_resource_manager()
        yarn.wait_for_node()
        life.wait_asked_again(moment)
        assert yarn.running() == [application_id]

        life.upgrade(*place.words(), "--master", "local[2]")
        wait_until(lambda: yarn.running() == [], lambda: str(yarn.running()), 60)
        before = life.status()
        (pod,) = (item["metadata"]["name"] for item in place.ask("pods")["items"])
        assert pod in before["driver"]
        cluster.call("DELETE", f"/api/v1/namespaces/{place.namespace}/pods/{pod}")
        life.wait_restarted(before)
        moment = life.moment()
        cluster.end("kubelet")
        life.work_unasked(moment, 2 * LOST_AFTER_SECONDS)
        cluster.start_kubelet()
        wait_until(cluster.is_node_ready, "the node", 120)
        life.wait_asked_again(moment)
        moment = life.moment()
        with cluster.stopped("api"):
            life.work_unasked(moment, MINUTE_SECONDS)
        life.wait_asked_again(moment)

        life.upgrade("--app", JOBS / "count_by_origin_v2.py")
        done("drain", "flights", *WAIT)
    assert counts_of(list(flights.written()), "origin") == counts(life.lines, "origin")
    assert done("audit", "flights")["ok"] is True
    wait_until(lambda: not place.has_running(), lambda: str(place.ask("pods")), 60)
    assert yarn.running() == []
