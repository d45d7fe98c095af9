"""A real YARN under a benchmark: where its streams run, and plain jobs alongside them, in cluster mode both."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.spark_home import own_spark_submit
from airflow_streamstate.launch.yarn_api import YarnOptions
from airflow_streamstate.protocol.terms.version import LauncherChoice
from benchmarks.grounds import Ground, environment
from benchmarks.results import BenchmarkError
from benchmarks.streams import CONF, JOBS, POLL_SECONDS, Drivers

if TYPE_CHECKING:
    from typing_extensions import Self

    from support.yarn_cluster import YarnCluster

SUBMIT_SECONDS = 120.0
END_SECONDS = 60.0
IN_CLUSTER_MODE = ("--master", "yarn", "--deploy-mode", "cluster")
_APPLICATION = re.compile(r"application_[0-9]+_[0-9]+")
_ENDED = ("FINISHED", "FAILED", "KILLED")


@contextmanager
def on_yarn(folder: Path) -> Iterator[Ground]:
    """One ResourceManager, one NodeManager; homes and checkpoints in a folder, which is made."""
    from support.yarn_cluster import yarn_cluster

    folder.mkdir(parents=True)
    with environment({"SPARK_LOCAL_IP": "127.0.0.1"}), yarn_cluster() as cluster:
        drivers = Drivers(LauncherChoice("yarn", cluster.options), None, cluster.conf)
        yield Ground(str(folder), folder, folder, partial(YarnJob, cluster), drivers)


class YarnJob:
    """A plain job, as ``PlainJob``: submitted, and killed by the ResourceManager.

    Raises:
        BenchmarkError: YARN did not take it.
    """

    def __init__(self, cluster: YarnCluster, script: str, arguments: Sequence[str], log_path: Path) -> None:
        self._cluster = cluster
        self._log_path = log_path
        submit = own_spark_submit(os.environ)
        options = YarnOptions.from_options(cluster.options, os.environ)
        settings = {**CONF, **cluster.conf, **options.conf("plain", "plain")}
        words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        with log_path.open("wb") as log:
            subprocess.run(
                [*submit.prefix, *IN_CLUSTER_MODE, *words, str(JOBS / script), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False, timeout=SUBMIT_SECONDS,
                env={**kept, **submit.environment, "HADOOP_CONF_DIR": str(cluster.conf_dir)},
            )  # fmt: skip
        found = _APPLICATION.search(self._said())
        if found is None:
            raise BenchmarkError(f"YARN did not take a plain job\n{self._said()}")
        self._application = found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(END_SECONDS)

    def wait(self, is_there: Callable[[], bool], what: str, seconds: float) -> None:
        """As ``Running.wait``."""
        until = SYSTEM_CLOCK.monotonic_seconds() + seconds
        while not is_there():
            if SYSTEM_CLOCK.monotonic_seconds() > until:
                raise BenchmarkError(f"{what} was not there after {seconds:.0f} s; {self._told()}\n{self._said()}")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def stop(self, seconds: float) -> None:
        """As ``yarn application -kill`` does, and wait until none of its processes is left."""
        if self._told()["state"] not in _ENDED:
            self._cluster.kill_application(self._application)
        until = SYSTEM_CLOCK.monotonic_seconds() + seconds
        while self._told()["state"] not in _ENDED or self._cluster.container_processes():
            if SYSTEM_CLOCK.monotonic_seconds() > until:
                raise BenchmarkError(f"a plain job did not end in {seconds:.0f} s: {self._told()}")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def _told(self) -> dict[str, Any]:
        found: Any = self._cluster.get(f"apps/{self._application}")
        return {name: found["app"][name] for name in ("state", "diagnostics")}

    def _said(self) -> str:
        return self._log_path.read_text(errors="replace")[-4000:]
