"""What a pod says about its driver. Only a node's kubelet proves an end; every other word of the cluster is a report.

The controllers of a cluster mark pods of lost nodes as failed, and remove pods, while their containers may work on
there: that is ``unknown``, and never death (Law 1a.8).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow_streamstate.launch.interface import LaunchState, LaunchStatus
from airflow_streamstate.launch.kubernetes.pod import DRIVER
from airflow_streamstate.launch.processes import exit_sentence
from airflow_streamstate.launch.rest import shown
from airflow_streamstate.protocol.codec import parse_time

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
        return told("unknown", "its end was ordered, and its node has not told that it came", reported_end=True)
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
            "unknown", f"the cluster counts it as ended, its node does not say so{_why(pod)}", reported_end=True
        )
    return found


def _how_it_ended(code: int, ended: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    if ended.get("reason") == _OOM:
        ours = [item for item in pod["spec"]["containers"] if item.get("name") == DRIVER]
        memory = next((item.get("resources", {}).get("limits", {}).get("memory") for item in ours), None)
        had = f"a limit of {memory}" if memory else "no limit of its own: its node ran out"
        return f"the kernel killed it for its memory ({had}), exit status {code}"
    if code == 0:
        return "it ended by itself"
    return exit_sentence(code)  # the container's own message may be a line of its log, with a secret


def _why(pod: Mapping[str, Any]) -> str:
    """What the pod as a whole gives as the reason of its end; "" for none."""
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
        "DeletionByTaintManager": "its node was given up by the cluster",
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
