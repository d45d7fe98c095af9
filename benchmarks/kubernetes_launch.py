"""A driver into a pod by our deploy, and by ``spark-submit --deploy-mode cluster``: CPU here, and time to first batch.

The same script over the same input in the same image, in pairs; the driver is all there is of Spark in both
(``local[2]``). Of a deploy, the whole process is counted, Python's start and imports among it, and the launcher's call
alone, which is what a worker of Airflow adds, whose Python runs already.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.spark_home import own_spark_submit
from benchmarks.grounds import commits_in
from benchmarks.kubernetes_ground import END_SECONDS, NAMESPACE, Place, kubernetes_place
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import CONF, JOBS, POLL_SECONDS, Running, Streams

NAME = "kubernetes-launch"
SCRIPT = "delays_by_week.py"
QUERY = "delays"
PAIRS, QUICK_PAIRS = 3, 1
RUN_SECONDS = 240.0
GOAL = 0.1
Cost = Mapping[str, float]

if TYPE_CHECKING:
    from collections.abc import Callable


def run(session: Session) -> list[Result]:
    """Measure pairs in alternating order; raises as ``kubernetes_place``."""
    source = session.flights()
    folder = session.folder / NAME
    with kubernetes_place(folder, (source,)) as place:
        bench = _Bench(place, folder, source)
        rounds: list[Cost] = []
        for number in range(1, (QUICK_PAIRS if session.quick else PAIRS) + 1):
            ways: list[Callable[[int], Cost]] = [bench.deployed, bench.submitted]
            found: dict[str, float] = {}
            for way in ways if number % 2 else reversed(ways):
                found |= way(number)
            rounds.append(found)
            session.say(f"  pair {number}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))
    return _results(rounds)


class _Bench:
    def __init__(self, place: Place, folder: Path, source: Path) -> None:
        self._place, self._folder, self._source = place, folder, source
        self._template = folder / "template.yaml"
        self._template.write_text(place.template)

    def deployed(self, number: int) -> Cost:
        """By a deploy in its own process."""
        folder = self._folder / f"deployed-{number}"
        home, stream_id = folder / "home", f"{NAME}-{number}"
        with Streams.on_disk(home, self._place.drivers) as streams:
            words = [str(home), stream_id, json.dumps(self._place.options), str(JOBS / SCRIPT)]
            began = SYSTEM_CLOCK.now().timestamp()
            said, cost = _run([sys.executable, "-m", "benchmarks.deployed", *words, *self._arguments(folder)], {})
            told = json.loads(said)
            try:
                running = Running(streams, stream_id, told.pop("deployment_id"))
                running.wait_committed(QUERY, 0, RUN_SECONDS)
                commits = commits_in(running.checkpoint_path(QUERY))
                container_at = self._place.started_at(told.pop("pod"))
            finally:
                streams.end(stream_id)
        return {
            "deploy_cpu_seconds": cost["cpu_seconds"],
            "deploy_seconds": cost["seconds"],
            "deploy_to_container_seconds": container_at - began,
            "deploy_to_commit_seconds": commits[0] - began,
            **told,
        }

    def submitted(self, number: int) -> Cost:
        """By spark-submit in cluster mode."""
        folder = self._folder / f"submitted-{number}"
        folder.mkdir()
        checkpoint = folder / "checkpoint"
        pod = f"submitted-{number}"
        words = [word for name, value in self._conf(pod).items() for word in ("--conf", f"{name}={value}")]
        arguments = (*self._arguments(folder), "--checkpoint", str(checkpoint))
        submit = own_spark_submit(os.environ)
        began = SYSTEM_CLOCK.now().timestamp()
        try:
            _, cost = _run(
                [
                    *(*submit.prefix, "--master", f"k8s://{self._place.cluster.url}", "--deploy-mode", "cluster"),
                    *("--name", pod, *words, f"local://{JOBS / SCRIPT}", *arguments),
                ],
                {**submit.environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
            self._wait_committed(pod, checkpoint)
            container_at = self._place.started_at(pod)
        finally:
            self._place.remove(pod, END_SECONDS)
        return {
            "submit_cpu_seconds": cost["cpu_seconds"],
            "submit_seconds": cost["seconds"],
            "submit_to_container_seconds": container_at - began,
            "submit_to_commit_seconds": commits_in(checkpoint)[0] - began,
        }

    def _conf(self, pod: str) -> dict[str, str]:
        from support.kube_cluster import ADMIN
        from support.kube_stage import ACCOUNT

        options = self._place.options
        ours = {
            "authenticate.submission.oauthToken": ADMIN,
            "authenticate.submission.caCertFile": str(self._place.cluster.authority),
            "authenticate.driver.serviceAccountName": ACCOUNT,
            "namespace": NAMESPACE,
            "container.image": str(options["image"]),
            "container.image.pullPolicy": "Never",
            "driver.pod.name": pod,
            "driver.podTemplateFile": str(self._template),
            "driver.podTemplateContainerName": "driver",
            "driver.master": "local[2]",
            "submission.waitAppCompletion": "false",
        }
        python = {"spark.pyspark.python": str(options["python"])}
        return {**CONF, **python, **{f"spark.kubernetes.{name}": value for name, value in ours.items()}}

    def _arguments(self, folder: Path) -> Sequence[str]:
        return (
            *("--input", str(self._source), "--output", str(folder / "delays")),
            *("--max-files-per-trigger", "1", "--every-seconds", "1"),
        )

    def _wait_committed(self, pod: str, checkpoint: Path) -> None:
        until = SYSTEM_CLOCK.monotonic_seconds() + RUN_SECONDS
        while 0 not in commits_in(checkpoint):
            if SYSTEM_CLOCK.monotonic_seconds() > until:
                raise BenchmarkError(f"the submitted driver never committed: {self._place.pod(pod)}")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)


def _run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[str, Cost]:
    """What a command prints, and what it costs with all that it starts and waits for."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), SYSTEM_CLOCK.monotonic_seconds()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, stdin=subprocess.DEVNULL)
    seconds = SYSTEM_CLOCK.monotonic_seconds() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise BenchmarkError(f"{Path(command[0]).name} failed: {done.stderr[-4000:]}")
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, {"cpu_seconds": cpu_seconds, "seconds": seconds}


def _results(rounds: list[Cost]) -> list[Result]:
    numbers: tuple[dict[str, Number], ...] = tuple(dict(found) for found in rounds)
    middle = {name: median(found[name] for found in rounds) for name in rounds[0]}
    theirs = "spark-submit --deploy-mode cluster"

    def ratio(ours: str, other: str) -> float:
        return median(found[ours] / found[other] for found in rounds)

    call, whole = (ratio(name, "submit_cpu_seconds") for name in ("launch_cpu_seconds", "deploy_cpu_seconds"))
    return [
        Result(
            name=f"{NAME}: cpu of the call",
            of=Side("the launcher's call, CPU here", middle["launch_cpu_seconds"], "s"),
            against=Side(f"{theirs}, CPU here", middle["submit_cpu_seconds"], "s"),
            ratio=call,
            ratio_means="of that",
            goal=Goal("0.1 of it", call, "<=", GOAL, "of it"),
            rounds=numbers,
            notes=(f"the call took {middle['launch_seconds']:.2f} s, spark-submit {middle['submit_seconds']:.2f} s",),
        ),
        Result(
            name=f"{NAME}: cpu of the process",
            of=Side("a whole deploy, Python's start among it, CPU here", middle["deploy_cpu_seconds"], "s"),
            against=Side(f"{theirs}, CPU here", middle["submit_cpu_seconds"], "s"),
            ratio=whole,
            ratio_means="of that",
            goal=Goal("0.1 of it", whole, "<=", GOAL, "of it"),
            rounds=numbers,
            notes=(f"the process took {middle['deploy_seconds']:.2f} s; most of its CPU imports the official client",),
        ),
        Result(
            name=f"{NAME}: first commit",
            of=Side("a deploy to its first commit", middle["deploy_to_commit_seconds"], "s"),
            against=Side(f"{theirs} to its first commit", middle["submit_to_commit_seconds"], "s"),
            ratio=ratio("deploy_to_commit_seconds", "submit_to_commit_seconds"),
            ratio_means="of that",
            goal=None,
            rounds=numbers,
            notes=(
                f"until the container has started, to the second: {middle['deploy_to_container_seconds']:.0f} s, and by"
                f" spark-submit {middle['submit_to_container_seconds']:.0f} s",
            ),
        ),
    ]
