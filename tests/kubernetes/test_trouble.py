"""What goes wrong on real clusters: nodes that are away, pods removed by force, quotas, rights, memory, silence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest, LaunchStatus
from support.kube_cluster import NODE, KubernetesCluster
from support.kube_stage import KubernetesStage
from support.launches import wait_until

pytestmark = [pytest.mark.timeout(900)]
KEY = "d-0001-a0001"
WORKS = "import time\nwhile True:\n    open({path!r}, 'a').write('x')\n    time.sleep(0.1)\n"


def _working(stage: KubernetesStage, **options: object) -> tuple[LaunchHandle, Path]:
    """A driver that works, and the file that grows with its work."""
    said = stage.folder / "works"
    handle = stage.launcher().launch(stage.with_options(stage.request(KEY, WORKS.format(path=str(said))), **options))
    wait_until(said.exists, lambda: str(stage.launcher().status(handle)), 120)
    # The pod's status is the kubelet's, which lags behind.
    wait_until(lambda: stage.launcher().status(handle).state == "running", "a running pod", 60)
    return handle, said


def _works_on(said: Path) -> bool:
    before = said.stat().st_size
    with contextlib.suppress(AssertionError):
        wait_until(lambda: said.stat().st_size > before, "work", 3)
    return said.stat().st_size > before


def _status(stage: KubernetesStage, handle: LaunchHandle, state: str, seconds: float = 90) -> LaunchStatus:
    wait_until(
        lambda: stage.launcher().status(handle).state == state, lambda: str(stage.launcher().status(handle)), seconds
    )
    return stage.launcher().status(handle)


@contextlib.contextmanager
def _node_away(cluster: KubernetesCluster) -> Iterator[None]:
    """The kubelet is dead; containers work on."""
    cluster.end("kubelet")
    try:
        yield
    finally:
        cluster.start_kubelet()
        wait_until(cluster.is_node_ready, "the node", 120)


def test_a_silent_node_is_unknown_and_right_again(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """Its container works on, so it is neither gone nor restarted (Law 1a.8)."""
    handle, said = _working(stage)
    with _node_away(cluster):
        status = _status(stage, handle, "unknown")
        assert not status.reported_end
        assert NODE in status.reason
        assert _works_on(said)
    _status(stage, handle, "running")
    assert stage.launcher().kill(handle, 1.0).state == "exited"


def test_removed_by_force_it_is_never_gone(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """The cluster forgets the pod while its container works on: a report of an end, and no proof (Law 1a.8)."""
    handle, said = _working(stage)
    with _node_away(cluster):
        cluster.call("DELETE", stage.path(handle), {"gracePeriodSeconds": 0})
        assert not stage.launcher().status(handle).has_ended
        assert isinstance(stage.pod(handle), dict), "the finalizer did not keep the pod"
        cluster.call("PATCH", stage.path(handle), {"metadata": {"finalizers": None}})
        assert stage.pod(handle) == 404
        status = stage.launcher().status(handle)
        assert (status.state, status.reported_end) == ("unknown", True)
        assert _works_on(said)
        assert not stage.launcher().kill(handle, 1.0).has_ended
        stage.launcher().forget(handle)


def test_a_kill_while_the_node_is_away_waits_for_its_word(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """It is ordered, not proven, until the kubelet is back and has done it."""
    handle, said = _working(stage)
    with _node_away(cluster):
        _status(stage, handle, "unknown")
        assert not stage.launcher().kill(handle, 1.0).has_ended
        assert "deletionTimestamp" in stage.pod(handle)["metadata"]
        assert _works_on(said)
        assert not stage.launcher().status(handle).has_ended
    status = _status(stage, handle, "exited")
    assert status.exit_code != 0
    assert not _works_on(said)


def test_a_person_deletes_the_pod(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """The exit code stays, since the finalizer keeps the pod; ``forget`` removes all of it."""
    handle, _ = _working(stage)
    cluster.call("DELETE", stage.path(handle), {"gracePeriodSeconds": 1})
    assert _status(stage, handle, "exited").exit_code in (137, 143)
    stage.launcher().forget(handle)
    wait_until(lambda: not stage.left_behind(), lambda: str(stage.left_behind()), 60)


def test_out_of_memory_is_told_with_the_memory_it_had(stage: KubernetesStage) -> None:
    """137 alone would look like a kill by hand."""
    program = "held = []\nwhile True:\n    held.append(bytearray(8 << 20))\n"
    request = stage.with_options(stage.request(KEY, program), memory="96Mi", memory_limit="96Mi")
    handle = stage.launcher().launch(request)
    status = _status(stage, handle, "exited")
    assert status.exit_code == 137
    assert "memory" in status.reason
    assert "96Mi" in status.reason


def test_the_log_of_a_driver_that_was_killed_stays(stage: KubernetesStage) -> None:
    """The node has removed the container by then; the caller's folder has a copy."""
    handle, _ = _working(stage)
    handle_2 = stage.launcher().launch(
        stage.request("d-0001-a0002", "import time\nprint('at work', flush=True)\ntime.sleep(600)\n")
    )
    wait_until(lambda: "at work" in stage.launcher().logs(handle_2, 1000), "the log", 60)
    stage.launcher().kill(handle_2, 1.0)
    wait_until(lambda: "at work" in stage.launcher().logs(handle_2, 1000), "the log after the kill", 10)
    stage.launcher().kill(handle, 1.0)


def test_a_full_quota_is_told_before_and_at_launch(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """Nothing is left of what the cluster refused."""
    quota = {"metadata": {"name": "full"}, "spec": {"hard": {"pods": "0"}}}
    path = f"/api/v1/namespaces/{stage.namespace}/resourcequotas"
    assert isinstance(cluster.call("POST", path, quota), dict)
    wait_until(lambda: bool(cluster.call("GET", f"{path}/full")["status"].get("hard")), "the quota", 60)
    request = stage.request(KEY, "")
    for act in (stage.launcher().check, stage.launcher().launch):
        with pytest.raises(UnavailableError, match=r"quota is used up.*kubectl -n .* describe resourcequota"):
            act(request)
    assert stage.launcher().find(request.place) is None
    assert stage.left_behind() == []


def test_a_quota_of_secrets_withdraws_the_pod(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """The pod could never start without its files."""
    quota = {"metadata": {"name": "full"}, "spec": {"hard": {"secrets": "0"}}}
    path = f"/api/v1/namespaces/{stage.namespace}/resourcequotas"
    assert isinstance(cluster.call("POST", path, quota), dict)
    wait_until(lambda: bool(cluster.call("GET", f"{path}/full")["status"].get("hard")), "the quota", 60)
    with pytest.raises(UnavailableError, match="quota"):
        stage.launcher().launch(stage.request(KEY, ""))
    wait_until(lambda: not stage.left_behind(), lambda: str(stage.left_behind()), 60)


def test_the_preflight_names_what_mends_it(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """Each refusal has the command; what is right passes, and leaves nothing."""
    launcher, request = stage.launcher(), stage.request(KEY, "")
    launcher.check(request)
    assert stage.left_behind() == []

    def refused(**options: object) -> str:
        with pytest.raises(InvalidRequestError) as error:
            launcher.check(stage.with_options(request, **options))
        return str(error.value)

    assert "image" in refused(image="")
    assert f"kubectl -n {stage.namespace} create serviceaccount nosuch" in refused(service_account="nosuch")
    said = refused(namespace="default")
    assert "create pods" in said
    assert "kubectl -n default create role" in said
    assert "kubectl create namespace nosuch" in refused(namespace="nosuch", kubeconfig=str(cluster.kubeconfig))
    expired = cluster.write_kubeconfig("expired", "token-that-has-expired")
    assert "expired" in refused(kubeconfig=str(expired))
    assert "kubeconfig" in refused(kubeconfig="/nowhere")
    assert "kubectl config get-contexts" in refused(context="nosuch")
    assert "PriorityClass" in refused(priority_class="nosuch")


def test_credentials_that_expire_are_unknown(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """401 and 403 are no death, and the reason states which."""
    handle, said = _working(stage)
    for user, token, words in (
        ("expired", "no-such-token", "expired"),
        ("stranger", "token-of-user-s399", "forbids"),
    ):
        elsewhere = {**handle.data, "kubeconfig": str(cluster.write_kubeconfig(user, token))}
        asked = LaunchHandle(handle.launcher, handle.launch_key, elsewhere)
        status = stage.launcher().status(asked)
        assert (status.state, status.reported_end) == ("unknown", False)
        assert words in status.reason
        assert not stage.launcher().kill(asked, 0.0).has_ended
        assert stage.launcher().logs(asked, 1000) == ""
    assert _works_on(said)
    stage.launcher().kill(handle, 1.0)


def test_an_api_server_that_is_away_is_unknown_and_right_again(
    cluster: KubernetesCluster, stage: KubernetesStage
) -> None:
    """A launch during that time reports that nothing was started; the driver works on."""
    handle, said = _working(stage)
    cluster.end("api")
    try:
        assert stage.launcher().status(handle).state == "unknown"
        with pytest.raises(UnavailableError):
            stage.launcher().launch(stage.request("d-0001-a0002", ""))
        with pytest.raises(UnavailableError):
            stage.launcher().find(stage.request(KEY, "").place)
        with pytest.raises(UnavailableError):
            stage.launcher().check(stage.request(KEY, ""))
        assert _works_on(said)
    finally:
        cluster.start_api_server()
    _status(stage, handle, "running")
    stage.launcher().kill(handle, 1.0)


def test_a_namespace_that_is_being_deleted(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """Refused with a clear error before a launch; the driver in it ends as the cluster reports."""
    handle, _ = _working(stage)
    cluster.call("DELETE", f"/api/v1/namespaces/{stage.namespace}")
    other = stage.request("d-0001-a0002", "")
    with pytest.raises(InvalidRequestError, match="being deleted"):
        stage.launcher().check(stage.with_options(other, kubeconfig=str(cluster.kubeconfig)))
    with pytest.raises(InvalidRequestError, match="being deleted"):
        stage.launcher().launch(stage.with_options(other, kubeconfig=str(cluster.kubeconfig)))
    admin = LaunchHandle(handle.launcher, KEY, {**handle.data, "kubeconfig": str(cluster.kubeconfig)})
    wait_until(lambda: stage.launcher().status(admin).state == "exited", "the end of its driver", 90)


def test_only_the_last_ended_pods_are_kept(stage: KubernetesStage) -> None:
    """Older ones are forgotten by the launch of the next (``keep_pods``)."""
    handles = []
    for number in range(1, 4):
        request: LaunchRequest = stage.with_options(stage.request(f"d-0001-a000{number}", ""), keep_pods=1)
        handles.append(stage.launcher().launch(request))
        _status(stage, handles[-1], "exited")
    assert stage.pod(handles[0]) == 404
    assert isinstance(stage.pod(handles[1]), dict)
    assert stage.launcher().status(handles[2]).exit_code == 0


def test_a_pod_of_another_cluster_is_not_taken_for_vanished(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """A namespace created again under the name is another one: nothing is reported about the driver's end."""
    handle, _ = _working(stage)
    other = LaunchHandle(handle.launcher, KEY, {**handle.data, "uid": "another", "namespace_uid": "another"})
    status = stage.launcher().status(other)
    assert (status.state, status.reported_end) == ("unknown", False)
    stage.launcher().kill(handle, 1.0)


def test_a_node_that_is_drained_sends_sigterm(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """It reaches a driver that does not stop when it is asked to; the reason names the eviction."""
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))\n"
        f"open({str(stage.folder / 'ready')!r}, 'w').close()\n"
        "time.sleep(600)\n"
    )
    handle = stage.launcher().launch(stage.with_options(stage.request(KEY, program), grace_seconds=8))
    wait_until((stage.folder / "ready").exists, lambda: str(stage.launcher().status(handle)), 120)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": handle.data["pod"]}}
    assert isinstance(cluster.call("POST", f"{stage.path(handle)}/eviction", eviction), dict)
    status = _status(stage, handle, "exited")
    assert status.exit_code == 9
    assert "evicted" in status.reason


def test_a_pod_of_higher_priority_is_told(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """The scheduler ends the driver, and the status reports who did."""
    urgent = {"metadata": {"name": f"urgent-{stage.namespace}"}, "value": 1000}
    assert isinstance(cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent), dict)
    handle, _ = _working(stage, cpu="1500m")
    other = stage.with_options(
        stage.request("d-0001-a0002", ""), cpu="1500m", priority_class=f"urgent-{stage.namespace}"
    )
    second = stage.launcher().launch(other)
    assert "preempted" in _status(stage, handle, "exited").reason
    _status(stage, second, "exited")


def test_a_spark_application_of_the_same_name_is_refused(cluster: KubernetesCluster, stage: KubernetesStage) -> None:
    """An operator would restart it behind our back."""
    cluster.spark_application(stage.namespace, stage.namespace)  # the name of the stream, too
    request = stage.with_options(stage.request(KEY, ""), kubeconfig=str(cluster.kubeconfig))
    with pytest.raises(InvalidRequestError, match=r"SparkApplication.*delete sparkapplication.*streamstate adopt"):
        stage.launcher().check(request)
    stage.launcher().check(stage.request(KEY, ""))  # without the right to look, nothing is refused
