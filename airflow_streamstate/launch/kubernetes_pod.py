"""The objects of one driver on Kubernetes, and what a pod's status proves."""

from __future__ import annotations

import base64
import copy
import hashlib
import importlib.resources
import io
import json
import re
import zipfile
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.command import DriverBundle
from airflow_streamstate.launch.driver_zip import zip_bytes
from airflow_streamstate.launch.interface import LaunchPlace, LaunchRequest, LaunchState, LaunchStatus
from airflow_streamstate.launch.kubernetes_api import KubernetesOptions, Volume
from airflow_streamstate.launch.processes import exit_sentence
from airflow_streamstate.launch.rest import shown
from airflow_streamstate.launch.submit_options import is_in_process
from airflow_streamstate.protocol.codec import parse_time
from airflow_streamstate.protocol.redaction import is_secret_name

DRIVER = "driver"
"""The name of our container."""
DOMAIN = "airflow-streamstate"
FINALIZER = f"{DOMAIN}/end-is-told"
"""Keeps a pod that was deleted, and with it the name and the exit code, until ``forget``."""
LAUNCH_LABEL = f"{DOMAIN}/launch"
SCOPE_LABEL = f"{DOMAIN}/scope"
KEY_NOTE = f"{DOMAIN}/launch-key"
SCOPE_NOTE = f"{DOMAIN}/scope-name"
PARTS_NOTE = f"{DOMAIN}/parts"
NAMESPACE_NOTE = f"{DOMAIN}/namespace-uid"
MANAGED = {"app.kubernetes.io/managed-by": DOMAIN}
MOUNT = "/streamstate/bundle"
WORK = "/streamstate/work"
START = "start.py"
EXECUTOR_TEMPLATE = "executor-pod.json"
PART_BYTES = 900 * 1024
"""A Secret holds 1 MiB."""
MOST_BYTES = 16 * 1024 * 1024


def pod_name(scope: str, launch_key: str) -> str:
    """The same for every controller; no capitals, and short enough for the names made from it."""
    return f"streamstate-{_hash(scope, launch_key)}"


def own_labels(place: LaunchPlace) -> dict[str, str]:
    return {**MANAGED, LAUNCH_LABEL: _hash(place.scope, place.launch_key), SCOPE_LABEL: _hash(place.scope)}


def secret_names(name: str, parts: int) -> list[str]:
    return [f"{name}-{part}" for part in range(parts)]


def pack(request: LaunchRequest, bundle: DriverBundle, options: KubernetesOptions) -> list[bytes]:
    """The files of a driver as the bodies of its Secrets.

    Raises:
        InvalidRequestError: they are too many for Secrets.
    """
    pods = request.master.startswith("k8s://")
    labels = {
        f"spark.kubernetes.executor.label.{key}": value
        for key, value in own_labels(request.place).items()
        if not key.startswith("app.kubernetes.io/")
    }
    conf = {
        "spark.kubernetes.container.image": str(
            _spec(options.template(), options, DRIVER)["containers"][0].get("image", "")
        ),
        "spark.kubernetes.authenticate.driver.serviceAccountName": options.service_account,
        "spark.kubernetes.executor.podTemplateFile": f"{WORK}/{EXECUTOR_TEMPLATE}",
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        **labels,
    }
    plan = {
        "environment": dict(bundle.environment),
        "arguments": list(bundle.submit_arguments),
        "conf": conf if pods else {},
        "given": sorted(bundle.conf),
        "in_process": is_in_process(request.master),
        "pods": pods,
        "grace_seconds": options.grace_seconds,
    }
    entries = {f"files/{name}": body for name, body in bundle.files.items()}
    entries["start.json"] = json.dumps(plan).encode()
    if pods:
        entries[f"files/{EXECUTOR_TEMPLATE}"] = json.dumps(executor_template(options)).encode()
    body = zip_bytes(entries.items(), deflated=True)
    if len(body) > MOST_BYTES:
        largest = sorted(bundle.files, key=lambda name: -len(bundle.files[name]))[:3]
        raise InvalidRequestError(
            "the files of the driver are too large to travel in Secrets",
            bytes=len(body),
            most=MOST_BYTES,
            largest=", ".join(largest),
            next_step="Put large files and jars into the image, or give them as URIs such as s3a://… or local:///….",
        )
    return [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]


def build_secrets(name: str, place: LaunchPlace, parts: list[bytes], owner_uid: str) -> list[dict[str, Any]]:
    """One Secret for each part; the first has what starts the driver, too. The pod owns them."""
    digest = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    starts = importlib.resources.files(__package__).joinpath("kubernetes_start.py").read_bytes()
    found = []
    for number, (secret, body) in enumerate(zip(secret_names(name, len(parts)), parts, strict=True)):
        data = {f"part-{number:03}-{digest}": body, **({START: starts} if number == 0 else {})}
        found.append(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": secret,
                    "labels": own_labels(place),
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": owner_uid}],
                },
                "immutable": True,
                "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
            }
        )
    return found


def build_pod(place: LaunchPlace, options: KubernetesOptions, parts: int) -> dict[str, Any]:
    """The pod of a driver whose files are in ``parts`` Secrets.

    Raises:
        InvalidRequestError: the template sets what is ours to set, or is not of a pod's shape.
    """
    try:
        return _built_pod(place, options, parts)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise InvalidRequestError(
            "a field of the pod template has another shape than that of a pod",
            reason=str(error)[:200],
            next_step="Correct it: `kubectl apply --dry-run=server -f FILE` names the fault.",
        ) from None


def _built_pod(place: LaunchPlace, options: KubernetesOptions, parts: int) -> dict[str, Any]:
    template = options.template()
    for field, option in _BY_OPTION.items():
        given = (template.get("spec") or {}).get(field)
        _refuse(given is not None, f"sets {field}: give the option {option} instead", given=given)
    name = pod_name(place.scope, place.launch_key)
    metadata = _metadata(template, options)
    metadata |= {"name": name, "namespace": options.namespace, "finalizers": [FINALIZER]}
    metadata["labels"] = {**metadata["labels"], **own_labels(place)}
    metadata["annotations"] = {
        **metadata["annotations"],
        KEY_NOTE: place.launch_key,
        SCOPE_NOTE: place.scope,
        PARTS_NOTE: str(parts),
    }
    spec = _spec(template, options, DRIVER)
    container = spec["containers"][0]
    _refuse(container.get("command") or container.get("args"), "gives the driver's container its own command")
    container["command"] = [options.python, f"{MOUNT}/{START}"]
    container["workingDir"] = WORK
    container["env"] = [*container.get("env", []), *_pod_facts()]
    container["volumeMounts"] = [
        *container.get("volumeMounts", []),
        {"name": "streamstate-bundle", "mountPath": MOUNT, "readOnly": True},
        {"name": "streamstate-work", "mountPath": WORK},
    ]
    sources = [{"secret": {"name": secret}} for secret in secret_names(name, parts)]
    spec["volumes"] = [
        *spec.get("volumes", []),
        {"name": "streamstate-bundle", "projected": {"sources": sources, "defaultMode": 0o444}},
        {"name": "streamstate-work", "emptyDir": {}},
    ]
    spec |= {
        "restartPolicy": "Never",
        "serviceAccountName": options.service_account,
        "terminationGracePeriodSeconds": options.grace_seconds,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def executor_template(options: KubernetesOptions) -> dict[str, Any]:
    """What the pods of executors have in common with the driver's; Spark adds the rest."""
    spec = _spec(options.template(), options, "executor")
    spec["containers"] = spec["containers"][:1]  # what runs alongside a driver does not run alongside executors
    spec["containers"][0].pop("resources", None)  # Spark has settings for these
    for name in ("initContainers", "restartPolicy", "nodeName"):
        spec.pop(name, None)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(options.template(), options),
        "spec": spec,
    }


def _metadata(template: Mapping[str, Any], options: KubernetesOptions) -> dict[str, Any]:
    given = template.get("metadata") or {}
    labels = {**(given.get("labels") or {}), **options.labels}
    notes = {**(given.get("annotations") or {}), **options.annotations}
    for kind, found in (("labels", labels), ("annotations", notes)):
        ours = [key for key in found if key.startswith(f"{DOMAIN}/") or key in MANAGED]
        _refuse(ours, f"sets {kind} that are this package's", names=", ".join(ours))
    _refuse(given.get("finalizers"), "names finalizers", names=", ".join(given.get("finalizers") or ()))
    _refuse(
        given.get("namespace") not in (None, options.namespace),
        "names another namespace",
        namespace=given.get("namespace"),
        option=options.namespace,
    )
    return {"labels": labels, "annotations": notes}


_BY_OPTION = {"serviceAccountName": "service_account", "terminationGracePeriodSeconds": "grace_seconds"}
"""Fields of a pod that an option sets, so that what else depends on them agrees."""


def _spec(template: Mapping[str, Any], options: KubernetesOptions, name: str) -> dict[str, Any]:
    """The template's pod with the options in it; the first container is ours."""
    spec: dict[str, Any] = copy.deepcopy(dict(template.get("spec") or {}))
    policy = spec.get("restartPolicy", "Never")
    _refuse(policy != "Never", "has another restart policy than Never: restarts are the watcher's", policy=policy)
    volumes = [item.get("name", "") for item in spec.get("volumes") or () if isinstance(item, dict)]
    ours = [item for item in volumes if item.startswith("streamstate-")]
    _refuse(ours, "has volumes with names of ours", names=", ".join(ours))
    container, others = _containers(spec)
    container = {**container, "name": name}
    if options.image:
        container["image"] = options.image
    if options.image_pull_policy:
        container["imagePullPolicy"] = options.image_pull_policy
    _resources(container, options)
    named = [item["name"] for one in (container, *others) for item in one.get("env") or () if item.get("value")]
    secret = [each for each in named if is_secret_name(each)]
    _refuse(secret, "has values of variables that look like secrets: name a Secret instead", names=", ".join(secret))
    from_secrets, variables = _secret_variables(options.env_from_secrets)
    container["envFrom"] = [*(container.get("envFrom") or []), *from_secrets]
    container["env"] = [*(container.get("env") or []), *variables]
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or []),
        *(_mount(number, volume) for number, volume in enumerate(options.volumes)),
    ]
    spec["containers"] = [container, *others]
    spec["volumes"] = [
        *(spec.get("volumes") or []),
        *(_volume(number, volume) for number, volume in enumerate(options.volumes)),
    ]
    spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **options.node_selector}
    spec["tolerations"] = [*(spec.get("tolerations") or []), *options.tolerations]
    spec["imagePullSecrets"] = [
        *(spec.get("imagePullSecrets") or []),
        *({"name": secret} for secret in options.image_pull_secrets),
    ]
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    return spec


def _containers(spec: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Ours of the template, and those that run alongside it."""
    given = spec.get("containers") or []
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise InvalidRequestError(
            "the containers of the pod template are no list of objects", next_step="Start each with `- name:`."
        )
    ours = [item for item in given if item.get("name") == DRIVER]
    _refuse(len(ours) > 1, "names two containers as the driver's", containers=len(ours))
    _refuse(
        len(given) > 1 and not ours,
        "has several containers and names none of them as the driver's",
        containers=", ".join(str(item.get("name")) for item in given),
    )
    chosen = ours[0] if ours else given[0] if given else {}
    return dict(chosen), [item for item in given if item is not chosen]


def _resources(container: dict[str, Any], options: KubernetesOptions) -> None:
    given = container.get("resources") or {}
    requests = {"cpu": options.cpu, "memory": options.memory}
    limits = {"cpu": options.cpu_limit, "memory": options.memory_limit}
    found = {
        "requests": {**(given.get("requests") or {}), **{key: value for key, value in requests.items() if value}},
        "limits": {**(given.get("limits") or {}), **{key: value for key, value in limits.items() if value}},
    }
    container["resources"] = {key: value for key, value in found.items() if value}


def _secret_variables(given: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    whole = [{"secretRef": {"name": name}} for name, entry in given.items() if not entry]
    single = []
    for variable, entry in given.items():
        secret, _, key = entry.partition("/")
        if entry:
            single.append({"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return whole, single


def _volume(number: int, volume: Volume) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {
        "host": {"hostPath": {"path": volume.name}},
        "claim": {"persistentVolumeClaim": {"claimName": volume.name}},
        "secret": {"secret": {"secretName": volume.name}},
        "config-map": {"configMap": {"name": volume.name}},
        "empty": {"emptyDir": {}},
    }
    return {"name": f"streamstate-volume-{number}", **kinds[volume.kind]}


def _mount(number: int, volume: Volume) -> dict[str, Any]:
    return {"name": f"streamstate-volume-{number}", "mountPath": volume.folder, "readOnly": volume.read_only}


def _pod_facts() -> list[dict[str, Any]]:
    facts = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    return [
        {"name": f"STREAMSTATE_{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in facts.items()
    ]


def _refuse(is_so: object, what: str, **facts: object) -> None:
    if is_so:
        raise InvalidRequestError(
            f"the pod template {what}",
            **facts,
            next_step="Take it out of the template: name the driver's container `driver`, leave the rest to options.",
        )


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def unpacked(body: bytes) -> dict[str, bytes]:
    """The files that ``pack`` put together, for tests and for debugging."""
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        return {re.sub("^files/", "", name): archive.read(name) for name in archive.namelist() if name[-1] != "/"}


# What a pod reports about its driver. Only a node's kubelet proves an end; every other word of the cluster is a report.
#
# The controllers of a cluster mark pods of lost nodes as failed, and remove pods, while their containers may work on
# there: that is ``unknown``, and never death (Law 1a.8).

SLACK = timedelta(seconds=30)
_OOM = "OOMKilled"
_NOT_LOCATED = "ContainerStatusUnknown"
_BY_CONTROL_PLANE = ("DeletionByPodGC", "DeletionByTaintManager")


def status_of(pod: Mapping[str, Any], now: datetime) -> LaunchStatus:
    """The status of the driver in this pod, by the JSON of the pod."""

    def told(
        state: LaunchState, reason: str, exit_code: int | None = None, *, reported_end: bool = False
    ) -> LaunchStatus:
        return LaunchStatus(state, exit_code, shown(reason, 600), now, reported_end=reported_end)

    state = _container_state(pod)
    ended = state.get("terminated")
    if ended is not None and ended.get("reason") == _NOT_LOCATED:
        return told("gone", f"its node does not find its container any more{_why(pod)}")
    if ended is not None:
        code = int(ended.get("exitCode", 1))
        return told("exited", f"{_how_it_ended(code, ended, pod)}{_why(pod)}", code)
    if pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
        return _ended_without_container(pod, state, told)
    deleted_at = _moment(pod["metadata"].get("deletionTimestamp"))
    if not pod["spec"].get("nodeName"):
        if deleted_at is not None:
            return told("gone", "it was withdrawn before it had a node: none takes it any more")
        return told("pending", _why_unscheduled(pod))
    if deleted_at is not None and now > deleted_at + SLACK:
        return told("unknown", "its end was ordered, and its node has not reported that it happened", reported_end=True)
    if "running" in state:
        if _node_is_silent(pod):
            return told("unknown", f"its node does not answer ({pod['spec']['nodeName']})")
        return told("running", "its end was ordered" if deleted_at else f"on node {pod['spec']['nodeName']}")
    return told("pending", _why_waiting(pod, state))


def _ended_without_container(pod: Mapping[str, Any], state: Mapping[str, Any], told: Any) -> LaunchStatus:
    found: LaunchStatus
    is_kubelets_word = not ({item.get("reason") for item in _conditions(pod)} & set(_BY_CONTROL_PLANE))
    has_node = bool(pod["spec"].get("nodeName"))
    if "running" not in state and (is_kubelets_word or not has_node):
        found = told("gone", f"it never started{_why(pod) or ': its node refused it, or it was withdrawn'}")
    else:
        found = told(
            "unknown", f"the cluster counts it as ended, its node does not report it{_why(pod)}", reported_end=True
        )
    return found


def _how_it_ended(code: int, ended: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    if ended.get("reason") == _OOM:
        ours = [item for item in pod["spec"]["containers"] if item.get("name") == DRIVER]
        memory = next((item.get("resources", {}).get("limits", {}).get("memory") for item in ours), None)
        had = f"a limit of {memory}" if memory else "no limit: its node ran out"
        return f"the kernel killed it for its memory ({had}), exit status {code}"
    if code == 0:
        return "it ended by itself"
    return exit_sentence(code)  # the container's own message may be a line of its log, with a secret


def _why(pod: Mapping[str, Any]) -> str:
    """What the pod as a whole gives as the reason of its end; "" if it gives none."""
    status = pod.get("status", {})
    reason, message = status.get("reason"), str(status.get("message") or "").strip()
    disrupted = next((item for item in _conditions(pod) if item.get("type") == "DisruptionTarget"), None)
    if not reason and disrupted:
        reason, message = disrupted.get("reason"), str(disrupted.get("message") or "")
    if not reason:
        return ""
    return f": {_word(reason)}{f' ({message[:300]})' if message else ''}"


def _word(reason: str) -> str:
    known = {
        "Evicted": "evicted by its node",
        "EvictionByEvictionAPI": "evicted, as when a node is drained",
        "PreemptionByScheduler": "preempted by a pod of higher priority",
        "Preempting": "preempted by a pod of higher priority",
        "DeadlineExceeded": "the pod's own deadline passed",
        "DeletionByTaintManager": "its node was abandoned by the cluster",
        "DeletionByPodGC": "its node was removed from the cluster",
        "TerminationByKubelet": "ended by its node",
    }
    return known.get(reason, reason)


def _why_unscheduled(pod: Mapping[str, Any]) -> str:
    for item in _conditions(pod):
        if item.get("type") == "PodScheduled" and item.get("status") == "False":
            return f"no node takes it: {item.get('message') or item.get('reason')}"
    return "no node has taken it yet"


def _why_waiting(pod: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    waiting = state.get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in ("", "ContainerCreating", "PodInitializing"):
        return f"node {pod['spec']['nodeName']} prepares its container"
    return f"its container cannot start: {reason}{f' ({message[:300]})' if message else ''}"


def _node_is_silent(pod: Mapping[str, Any]) -> bool:
    """Whether the cluster's node controller has taken readiness away, which the kubelet's own words would not."""
    found = {item.get("type"): item.get("status") for item in _conditions(pod)}
    return found.get("Ready") == "False" and found.get("ContainersReady") == "True"


def _container_state(pod: Mapping[str, Any]) -> dict[str, Any]:
    for item in pod.get("status", {}).get("containerStatuses") or ():
        if item.get("name") == DRIVER:
            return dict(item.get("state") or {})
    return {}


def _conditions(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(pod.get("status", {}).get("conditions") or ())


def _moment(text: str | None) -> datetime | None:
    return parse_time(text) if text else None
