"""A real Kubernetes under a benchmark: where its streams run, and plain jobs alongside them, each in its own pod.

Drivers have ``local[2]`` for their master, ours and theirs: executors would only make a plain job start later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import yaml

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.spark_home import own_pyspark
from airflow_streamstate.protocol.terms.version import LauncherChoice
from benchmarks.grounds import Ground
from benchmarks.results import BenchmarkError
from benchmarks.streams import CONF, JOBS, MASTER, POLL_SECONDS, Drivers

if TYPE_CHECKING:
    from typing_extensions import Self

    from support.kube_cluster import KubernetesCluster
    from support.kube_stage import KubernetesStage

NAMESPACE = "s0"
"""Its user is one that the cluster knows."""
END_SECONDS = 60.0


class Place:
    """A namespace of a running cluster, with the rights that the documentation asks for.

    Attributes:
        template: the YAML of a pod that has this machine's Python, Java, Spark and these folders.
        options: of the launcher, for drivers there.
    """

    def __init__(self, stage: KubernetesStage, spark_home: Path, folders: Sequence[Path]) -> None:
        self.cluster: KubernetesCluster = stage.cluster
        self.spark_home = spark_home
        self._variables, self._folders = stage.variables, folders
        self.template = self.template_with({})
        self.options = {**stage.options, "pod_template": self.template}
        self._pods = f"/api/v1/namespaces/{stage.namespace}/pods"

    @property
    def drivers(self) -> Drivers:
        """Of streams."""
        return Drivers(LauncherChoice("kubernetes", self.options))

    def template_with(self, variables: Mapping[str, str]) -> str:
        """The template with more variables."""
        from support.kube_cluster import machine_template

        return machine_template(variables={**self._variables, **variables}, folders=self._folders)

    def create(self, pod: object) -> None:
        """Make a pod, as the administrator."""
        answer = self.cluster.call("POST", self._pods, pod)
        if not isinstance(answer, dict):
            raise BenchmarkError(f"the cluster does not take a pod: {answer}")

    def pod(self, name: str) -> Any:
        """What the cluster reports of a pod; 404 if there is no such pod."""
        return self.cluster.call("GET", f"{self._pods}/{name}")

    def started_at(self, name: str) -> float:
        """When the container of a pod that runs was started, in seconds since 1970, to the second."""
        (status,) = self.pod(name)["status"]["containerStatuses"]
        return datetime.fromisoformat(status["state"]["running"]["startedAt"]).timestamp()

    def remove(self, name: str, seconds: float) -> None:
        """As ``kubectl delete pod`` does, and wait until it is gone."""
        self.cluster.call("DELETE", f"{self._pods}/{name}")
        until = SYSTEM_CLOCK.monotonic_seconds() + seconds
        while self.pod(name) != 404:
            if SYSTEM_CLOCK.monotonic_seconds() > until:
                raise BenchmarkError(f"a pod did not end in {seconds:.0f} s: {self.pod(name)['status']}")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)


@contextmanager
def kubernetes_place(folder: Path, folders: Sequence[Path] = ()) -> Iterator[Place]:
    """A cluster with one namespace; its pods have these folders and the scripts of ``jobs/``, too.

    Raises:
        BenchmarkError: this machine lacks something that the cluster needs.
    """
    from support.kube_program import lacks

    spark_home = own_pyspark()
    said = lacks() or ("" if spark_home else "drivers in pods run on this Python's pyspark, which is not here")
    if said or spark_home is None:
        raise BenchmarkError(said)
    from support.kube_cluster import kubernetes_cluster
    from support.kube_stage import KubernetesStage

    folder.mkdir(parents=True)
    with kubernetes_cluster() as cluster:
        stage = KubernetesStage(folder, cluster, NAMESPACE, spark_home)
        yield Place(stage, spark_home, (folder, JOBS, *folders))


@contextmanager
def on_kubernetes(folder: Path, source: Path) -> Iterator[Ground]:
    """Homes and checkpoints in a folder, which is made; ``source``: of the input. Raises as ``kubernetes_place``."""
    with kubernetes_place(folder, (source,)) as place:

        def run_plain(script: str, arguments: Sequence[str], log_path: Path) -> PodJob:
            return PodJob(place, script, arguments, log_path)

        yield Ground(str(folder), folder, folder, run_plain, place.drivers)


class PodJob:
    """A plain job, as ``PlainJob``: ``spark-submit`` in client mode is all that its pod runs, the fastest way."""

    name = "plain"

    def __init__(self, place: Place, script: str, arguments: Sequence[str], log_path: Path) -> None:
        self._place = place
        self._log_path = log_path
        conf = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
        submit = [str(place.spark_home / "bin" / "spark-submit"), "--master", MASTER, *conf]
        pod = yaml.safe_load(place.template)
        container = pod["spec"]["containers"][0]
        container["image"], container["imagePullPolicy"] = place.options["image"], "Never"
        container["env"].append({"name": "PYSPARK_PYTHON", "value": place.options["python"]})
        container["command"] = [
            *("/bin/bash", "-c", 'exec "$@" >"$0" 2>&1', str(log_path)),
            *(*submit, str(JOBS / script), *arguments),
        ]
        pod["metadata"], pod["spec"]["restartPolicy"] = {"name": self.name}, "Never"
        place.create(pod)

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
                said = self._log_path.read_text(errors="replace")[-4000:] if self._log_path.exists() else ""
                raise BenchmarkError(f"{what} never was there: {self._place.pod(self.name)}\n{said}")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def stop(self, seconds: float) -> None:
        """Delete the pod, and wait until it is gone."""
        self._place.remove(self.name, seconds)
