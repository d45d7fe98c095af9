"""What pods of real clusters look like, and what that means: only a kubelet's word is an end."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.launch.kubernetes_pod import status_of

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
RUNNING = {"running": {"startedAt": "2026-01-01T11:00:00Z"}}


def _pod(
    state: dict[str, Any] | None = None,
    *,
    phase: str = "Running",
    node: str = "n1",
    deleted_at: str = "",
    conditions: tuple[dict[str, str], ...] = (),
    limits: dict[str, str] | None = None,
    **status: Any,
) -> dict[str, Any]:
    states = [] if state is None else [{"name": "beside", "state": RUNNING}, {"name": "driver", "state": state}]
    return {
        "metadata": {"name": "p", **({"deletionTimestamp": deleted_at} if deleted_at else {})},
        "spec": {"nodeName": node, "containers": [{"name": "driver", "resources": {"limits": limits or {}}}]},
        "status": {"phase": phase, "containerStatuses": states, "conditions": list(conditions), **status},
    }


def _ended(code: int, **more: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **more}}


@pytest.mark.parametrize(
    ("pod", "state", "code", "reported", "words"),
    [
        (_pod(RUNNING), "running", None, False, "node n1"),
        (_pod(_ended(3)), "exited", 3, False, "exit status 3"),
        (_pod(_ended(0), phase="Succeeded"), "exited", 0, False, "by itself"),
        (_pod(_ended(137, reason="OOMKilled"), limits={"memory": "2Gi"}), "exited", 137, False, "limit of 2Gi"),
        (_pod(_ended(143), reason="Evicted", message="disk"), "exited", 143, False, "evicted by its node .disk"),
        (
            _pod(_ended(143), conditions=({"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI"},)),
            "exited",
            143,
            False,
            "drained",
        ),
        (_pod(_ended(137, reason="ContainerStatusUnknown"), phase="Failed"), "gone", None, False, "not find"),
        (_pod(phase="Failed", reason="NodePorts", message="busy"), "gone", None, False, "NodePorts .busy"),
        (_pod(RUNNING, phase="Failed", reason="NodeLost"), "unknown", None, True, "node does not report it"),
        (
            _pod(phase="Failed", conditions=({"type": "DisruptionTarget", "reason": "DeletionByPodGC"},)),
            "unknown",
            None,
            True,
            "removed from the cluster",
        ),
        (
            _pod(
                RUNNING,
                conditions=({"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}),
            ),
            "unknown",
            None,
            False,
            "does not answer",
        ),
        (_pod(RUNNING, deleted_at="2026-01-01T11:58:00Z"), "unknown", None, True, "was ordered"),
        (_pod(RUNNING, deleted_at="2026-01-01T12:00:10Z"), "running", None, False, "was ordered"),
        (
            _pod(
                phase="Pending",
                node="",
                conditions=({"type": "PodScheduled", "status": "False", "message": "0/3 nodes"},),
            ),
            "pending",
            None,
            False,
            "0/3 nodes",
        ),
        (_pod(phase="Pending", node="", deleted_at="2026-01-01T12:00:00Z"), "gone", None, False, "withdrawn"),
        (
            _pod({"waiting": {"reason": "ErrImagePull", "message": "not found"}}, phase="Pending"),
            "pending",
            None,
            False,
            "ErrImagePull .not found",
        ),
        (_pod({"waiting": {"reason": "ContainerCreating"}}, phase="Pending"), "pending", None, False, "prepares"),
        (_pod(phase="Pending"), "pending", None, False, "prepares"),
    ],
)
def test_what_a_pod_says(pod: dict[str, Any], state: str, code: int | None, reported: bool, words: str) -> None:
    """An end that only the control plane reports is unknown (Law 1a.8)."""
    status = status_of(pod, NOW)
    assert (status.state, status.exit_code, status.reported_end) == (state, code, reported)
    assert words.replace(".", "(") in status.reason.replace("(", "(")


def test_what_a_cluster_says_is_shown_in_one_line() -> None:
    """Without control characters, and of limited length."""
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "a\nb\x1b[31m" + "x" * 5000}}
    reason = status_of(_pod(waiting, phase="Pending"), NOW).reason
    assert "a b?[31m" in reason
    assert reason.isprintable()
    assert len(reason) <= 600
