"""The Kubernetes launcher as a stage of its conformance suite: its own namespace, with least rights."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from airflow_streamstate.launch.kubernetes import KubernetesLauncher
from airflow_streamstate.launch.kubernetes_pod import MANAGED
from support.kube_cluster import IMAGE, KubernetesCluster, machine_template
from support.launcher_stage import WITHOUT_SPARK
from support.launches import launch_and_die

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "kubernetes.md"
ACCOUNT = "streamstate-driver"


def role_of_docs() -> str:
    """The YAML of the page, which states that it is all that is needed."""
    found = re.search(r"```yaml\n(apiVersion: rbac.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


class KubernetesStage:
    """As ``LauncherStage``.

    Args:
        spark_home: of the drivers; None for drivers without Spark.
    """

    patience_seconds = 180.0

    def __init__(self, base: Path, cluster: KubernetesCluster, namespace: str, spark_home: Path | None = None) -> None:
        self.clock: Clock = SYSTEM_CLOCK
        self.base, self.cluster, self.namespace = base, cluster, namespace
        self.folder = base / "said"
        self.folder.mkdir()
        self.kubeconfig = cluster.namespace(namespace, role_of_docs())
        self.variables = {"SPARK_HOME": str(spark_home or _without_spark(base)), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.options: dict[str, object] = {
            "image": IMAGE,
            "image_pull_policy": "Never",
            "namespace": namespace,
            "kubeconfig": str(self.kubeconfig),
            "service_account": ACCOUNT,
            "python": sys.executable,
            "pod_template": machine_template(variables=self.variables),
        }

    def words(self) -> list[str]:
        """The options of the shell that name launcher and pod."""
        options = (f"{name}={value}" for name, value in self.options.items())
        return ["--launcher", "kubernetes", *(word for item in options for word in ("--launcher-option", item))]

    def launcher(self) -> KubernetesLauncher:
        return KubernetesLauncher(SYSTEM_CLOCK)

    def request(self, launch_key: str, program: str, scope: str = "") -> LaunchRequest:
        folder = self.base / "launches" / scope[-1:] / launch_key
        path = self.base / f"{scope[-1:]}{launch_key}.py"
        path.write_text(program)
        return LaunchRequest(
            launch_key=launch_key,
            application=str(path),
            master="local[1]",
            folder=str(folder),
            log_path=str(folder / "driver.log"),
            environment={"PROGRAM": str(path), "PYTHONUTF8": "1"},
            launcher="kubernetes",
            scope=scope or f"1b4e28ba-2fa1-11d2-883f-0016d3cca427/{self.namespace}",
            options=self.options,
        )

    def with_options(self, request: LaunchRequest, **more: object) -> LaunchRequest:
        return replace(request, options={**self.options, **more})

    def impossible_request(self, launch_key: str) -> LaunchRequest:
        raw = self.request(launch_key, "").to_json()
        return LaunchRequest.from_json({**raw, "jars": [str(self.base / "nosuch.jar")]})

    def lacking_request(self, launch_key: str) -> LaunchRequest:
        return self.with_options(self.request(launch_key, ""), image="streamstate.local/nosuch:1")

    def roomless_request(self, launch_key: str) -> LaunchRequest:
        return self.with_options(self.request(launch_key, ""), cpu="1000")

    def shown(self, handle: LaunchHandle) -> str:
        """The pod, its events, and all command lines of the node; Secrets are not for other users."""
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        told = [self.ask(kind) for kind in ("pods", "events", "configmaps")]
        return json.dumps(told) + b"\n".join(lines).decode("utf-8", "replace")

    def left_behind(self) -> list[str]:
        found = []
        for kind in ("pods", "secrets"):
            for item in self.ask(kind)["items"]:
                labels = item["metadata"].get("labels", {})
                if MANAGED.items() <= labels.items() or "spark-role" in labels:
                    found.append(f"{kind}/{item['metadata']['name']}")
        return found

    def ask(self, kind: str) -> Any:
        """The objects of a kind, as the administrator sees them."""
        return self.cluster.call("GET", f"/api/v1/namespaces/{self.namespace}/{kind}")

    def has_running(self) -> bool:
        """Whether there is a pod here whose end no kubelet has reported."""
        states = [
            item["status"].get("containerStatuses", [{}])[0].get("state", {}) for item in self.ask("pods")["items"]
        ]
        return not all("terminated" in state for state in states)

    def pod(self, handle: LaunchHandle) -> Any:
        return self.cluster.call("GET", self.path(handle))

    def path(self, handle: LaunchHandle) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{handle.data['pod']}"

    def launch_and_die(self, request: LaunchRequest) -> None:
        launch_and_die(request, os.environ)

    @contextlib.contextmanager
    def out_of_reach(self, handle: LaunchHandle) -> Iterator[LaunchHandle]:
        """The API server takes connections, and answers nothing."""
        with self.cluster.stopped("api"):
            yield handle


def _without_spark(base: Path) -> Path:
    """A home whose ``spark-submit`` is the request's program."""
    submit = base / "spark-home" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(f"#!/bin/sh\n{WITHOUT_SPARK}\n")
    submit.chmod(0o755)
    return submit.parents[1]
