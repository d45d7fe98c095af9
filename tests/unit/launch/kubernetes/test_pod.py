"""The driver's pod: what options and template give, and what is ours."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch import kubernetes_pod as pods
from airflow_streamstate.launch.command import build_bundle
from airflow_streamstate.launch.interface import LaunchPlace, LaunchRequest
from airflow_streamstate.launch.kubernetes import KubernetesLauncher
from airflow_streamstate.launch.kubernetes_api import KubernetesOptions

PLACE = LaunchPlace(
    launcher="kubernetes",
    scope=f"1b4e28ba-2fa1-11d2-883f-0016d3cca427/{'s' * 63}",
    launch_key="d-0001-a0001",
    folder="/nowhere",
)
TEMPLATE = """
metadata:
  labels: {team: data}
spec:
  nodeSelector: {pool: streams}
  containers:
    - name: beside
      image: proxy
    - name: driver
      image: old
      env: [{name: A, value: b}]
      resources: {requests: {cpu: "1"}, limits: {memory: 2Gi}}
"""


def _pod(**raw: object) -> dict[str, Any]:
    return pods.build_pod(PLACE, KubernetesOptions.from_options({"image": "spark:1", **raw}), 2)


def _request(tmp_path: Path, **changes: Any) -> LaunchRequest:
    script = tmp_path / "job.py"
    script.write_text("print('job')\n")
    values: dict[str, Any] = {
        "launch_key": PLACE.launch_key,
        "application": str(script),
        "master": "k8s://https://kubernetes.default.svc",
        "folder": str(tmp_path / "launch"),
        "log_path": str(tmp_path / "launch" / "driver.log"),
        "scope": PLACE.scope,
        "environment": {"TOKEN": "correct-horse"},
    }
    return LaunchRequest(**{**values, **changes})


def test_names_fit_and_never_meet() -> None:
    """Names and labels hold at most 63 characters, and are made of the whole scope and key."""
    name = pods.pod_name(PLACE.scope, PLACE.launch_key)
    assert len(pods.secret_names(name, 999)[-1]) <= 63
    assert name == name.lower()
    assert name != pods.pod_name(PLACE.scope[:-1] + "t", PLACE.launch_key)
    assert name != pods.pod_name(PLACE.scope, "d-0001-a0002")
    assert all(len(value) <= 63 for value in pods.own_labels(PLACE).values())


def test_the_pod_is_ours() -> None:
    """Never restarted by the cluster, kept by our finalizer, and found by our labels."""
    pod = _pod(labels="team=data", grace_seconds=20)
    assert pod["metadata"]["finalizers"] == [pods.FINALIZER]
    assert pod["metadata"]["labels"] == {"team": "data", **pods.own_labels(PLACE)}
    assert pod["metadata"]["annotations"][pods.SCOPE_NOTE] == PLACE.scope
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 20
    container = pod["spec"]["containers"][0]
    assert container["command"] == ["python3", "/streamstate/bundle/start.py"]
    sources = pod["spec"]["volumes"][0]["projected"]["sources"]
    assert [item["secret"]["name"] for item in sources] == pods.secret_names(pod["metadata"]["name"], 2)


def test_options_come_on_top_of_the_template() -> None:
    """What the template sets stays, unless an option sets it otherwise; so does what runs alongside the driver."""
    pod = _pod(
        pod_template=TEMPLATE,
        node_selector={"disk": "ssd"},
        cpu="2",
        env_from_secrets="all,TOKEN=one/token",
        volumes="claim:data:/data:ro",
    )
    driver, beside = pod["spec"]["containers"]
    assert (driver["name"], driver["image"], beside["image"]) == ("driver", "spark:1", "proxy")
    assert driver["resources"] == {"requests": {"cpu": "2"}, "limits": {"memory": "2Gi"}}
    assert pod["spec"]["nodeSelector"] == {"pool": "streams", "disk": "ssd"}
    assert pod["metadata"]["labels"]["team"] == "data"
    assert [item["name"] for item in driver["env"]][:2] == ["A", "TOKEN"]
    assert driver["envFrom"] == [{"secretRef": {"name": "all"}}]
    assert driver["volumeMounts"][0] == {"name": "streamstate-volume-0", "mountPath": "/data", "readOnly": True}


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("spec: {restartPolicy: Always}", "another restart policy"),
        ("spec: {containers: [{name: driver}, {name: driver}]}", "two containers"),
        ("spec: {containers: [{name: a}, {name: b}]}", "names none of them"),
        ("spec: {containers: [{name: driver, command: [x]}]}", "its own command"),
        ("spec: {containers: 3}", "no list of objects"),
        ("spec: {volumes: [{name: streamstate-work}]}", "names of ours"),
        ("metadata: {labels: {airflow-streamstate/launch: x}}", "this package's"),
        ("metadata: {finalizers: [a/b]}", "finalizers"),
        ("metadata: {namespace: other}", "another namespace"),
        ("spec: {serviceAccountName: mine}", "give the option service_account"),
        ("spec: {terminationGracePeriodSeconds: 3}", "give the option grace_seconds"),
        ("spec: {containers: [{name: driver, env: [{name: DB_PASSWORD, value: hunter2}]}]}", "look like secrets"),
        ("spec: {volumes: 3}", "another shape"),
        ("metadata: {labels: [a]}", "another shape"),
        ("spec: {nodeSelector: [a]}", "another shape"),
        ("spec: {containers: [{name: driver, resources: {limits: 3}}]}", "another shape"),
    ],
)
def test_a_template_says_nothing_that_is_ours(template: str, words: str) -> None:
    """Refused by name, before the cluster is asked."""
    with pytest.raises(InvalidRequestError, match=words):
        _pod(pod_template=f"{template}\n")


def test_files_travel_in_secrets_alone(tmp_path: Path) -> None:
    """The pod, which others can read, holds no secret; the parts together are the bundle, and what starts it."""
    request = _request(tmp_path)
    options = KubernetesOptions(image="spark:1")
    bundle = build_bundle(request)
    parts = pods.pack(request, bundle, options)
    assert "correct-horse" not in json.dumps(pods.build_pod(PLACE, options, len(parts)))
    secrets = pods.build_secrets("name", PLACE, parts, "uid")
    assert pods.START in secrets[0]["data"]
    assert all(secret["metadata"]["ownerReferences"][0]["uid"] == "uid" for secret in secrets)
    body = b"".join(
        base64.b64decode(value) for secret in secrets for key, value in secret["data"].items() if key != pods.START
    )
    found = pods.unpacked(body)
    assert bundle.files.items() <= found.items()
    plan = json.loads(found["start.json"])
    assert plan["environment"]["TOKEN"] == "correct-horse"
    assert plan["conf"]["spark.kubernetes.container.image"] == "spark:1"


def test_large_files_are_split_and_too_large_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Secret holds 1 MiB; beyond 16 MiB the image or a URI is the way."""
    large = tmp_path / "model.bin"
    large.write_bytes(os.urandom(2_500_000))
    request = _request(tmp_path, files=(str(large),))
    parts = pods.pack(request, build_bundle(request), KubernetesOptions(image="spark:1"))
    assert len(parts) >= 3
    assert all(len(part) <= pods.PART_BYTES for part in parts)
    monkeypatch.setattr(pods, "MOST_BYTES", 1_000_000)
    with pytest.raises(InvalidRequestError, match=r"too large.*model\.bin"):
        pods.pack(request, build_bundle(request), KubernetesOptions(image="spark:1"))


def test_executors_get_what_the_driver_gets_and_not_what_runs_beside_it() -> None:
    """Nodes, volumes and variables; sizes are Spark's own settings."""
    options = KubernetesOptions.from_options(
        {"image": "spark:1", "pod_template": TEMPLATE, "volumes": "claim:data:/data", "tolerations": [{"key": "x"}]}
    )
    spec = pods.executor_template(options)["spec"]
    assert [item["name"] for item in spec["containers"]] == ["executor"]
    assert "resources" not in spec["containers"][0]
    assert spec["containers"][0]["volumeMounts"][0]["mountPath"] == "/data"
    assert spec["tolerations"] == [{"key": "x"}]
    assert "restartPolicy" not in spec


def test_executors_have_the_image_of_the_template(tmp_path: Path) -> None:
    """Where no option names one."""
    template = "spec: {containers: [{name: driver, image: from-template}]}\n"
    request = _request(tmp_path)
    parts = pods.pack(request, build_bundle(request), KubernetesOptions(pod_template=template))
    with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
        plan = json.loads(archive.read("start.json"))
    assert plan["conf"]["spark.kubernetes.container.image"] == "from-template"


@pytest.mark.parametrize(
    ("conf", "known"),
    [
        ({"spark.executorEnv.DB_PASSWORD": "hunter2"}, []),
        ({"spark.executorEnv.PLAIN": "hunter2"}, ["hunter2"]),
        ({"spark.executor.extraJavaOptions": "-Dx=hunter2"}, ["hunter2"]),
    ],
)
def test_a_secret_that_spark_would_write_into_executors_pods_is_refused(
    tmp_path: Path, conf: dict[str, str], known: list[str]
) -> None:
    """By name, and by value where it was looked up."""
    request = _request(tmp_path, conf=conf, driver_config={"secrets": known}, options={"image": "spark:1"})
    with pytest.raises(InvalidRequestError, match="the pods of executors") as caught:
        KubernetesLauncher(SYSTEM_CLOCK).check(request)
    assert "hunter2" not in str(caught.value)


def _against_restricted(pod: dict[str, Any]) -> list[str]:
    """What Kubernetes' Pod Security level ``restricted`` refuses of a pod (v1.37), by its documented rules."""
    spec = pod["spec"]
    of_pod = spec.get("securityContext") or {}
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    kinds = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    found += [each["name"] for each in spec["volumes"] if not kinds & each.keys()]
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        own = container.get("securityContext") or {}
        both = {**of_pod, **own}
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            found.append("allowPrivilegeEscalation")
        if (own.get("capabilities") or {}).get("drop") != ["ALL"] or (own.get("capabilities") or {}).get("add"):
            found.append("capabilities")
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            found.append("runAsNonRoot")
        if (both.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
            found.append("seccompProfile")
        found += [str(port["hostPort"]) for port in container.get("ports", []) if port.get("hostPort")]
    return found


def test_with_the_template_of_the_page_the_pods_fit_the_level_restricted() -> None:
    """Driver and executors; what we add ourselves is nothing that the level refuses."""
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "kubernetes.md").read_text()
    (template,) = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "runAsNonRoot" in text]
    volumes = "claim:data:/data,secret:tls:/tls:ro,empty:x:/x"
    options = {"image": "spark:1", "pod_template": template, "volumes": volumes}
    assert _against_restricted(_pod(**options)) == []
    made = pods.executor_template(KubernetesOptions.from_options(options))
    assert _against_restricted(made) == []
    missing = {"allowPrivilegeEscalation", "capabilities", "runAsNonRoot", "seccompProfile"}
    assert set(_against_restricted(_pod())) == missing
    assert _against_restricted(_pod(**{**options, "volumes": "host:/mnt/x:/x"})) == ["streamstate-volume-0"]
