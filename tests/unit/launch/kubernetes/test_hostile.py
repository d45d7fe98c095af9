"""Forged records of pods, and API servers that lead elsewhere or never come to an end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.allowed import Allowed, AllowedPlace
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, UntrustedRecordError
from airflow_streamstate.launch import kubernetes, kubernetes_api
from airflow_streamstate.launch.interface import LaunchHandle, LaunchPlace
from airflow_streamstate.launch.kubernetes import KubernetesLauncher
from airflow_streamstate.launch.kubernetes_api import KubernetesOptions
from airflow_streamstate.launch.kubernetes_pod import KEY_NOTE, SCOPE_NOTE, pod_name
from support.hostile_server import Act, answering, dripping, endless, hostile_server, redirecting

KEY, SCOPE = "d-0001-a0001", "home/stream"


def _place(folder: Path, url: str = "http://127.0.0.1:1") -> LaunchPlace:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": "a-token-of-somebody"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    options = {"image": "spark:4", "namespace": "streams", "kubeconfig": str(path)}
    return LaunchPlace(
        launcher="kubernetes", scope=SCOPE, launch_key=KEY, folder=str(folder / "launch"), options=options
    )


def _recorded(place: LaunchPlace, **data: object) -> LaunchHandle:
    facts = {"namespace": "streams", "pod": pod_name(SCOPE, KEY), "uid": "4f1d-2", "parts": 2}
    return LaunchHandle("kubernetes", KEY, {**facts, "kubeconfig": place.options["kubeconfig"], **data})


@pytest.mark.parametrize(
    "data",
    [
        {"kubeconfig": "/tmp/mine"},
        {"context": "other"},
        {"conn_id": "k8s_prod"},
        {"namespace": "kube-system"},
        {"pod": "another-pod"},
        {"uid": "../../secrets"},
        {"uid": None},
        {"uid": 7},
        {"namespace_uid": ["x"]},
        {"parts": 10**9},
        {"parts": True},
        {"parts": "2"},
        {"scope": "home/another"},
    ],
)
def test_a_forged_record_of_a_pod_is_refused(tmp_path: Path, data: dict[str, object]) -> None:
    """Only uids and the count of Secrets are taken, by their form."""
    place = _place(tmp_path)
    with pytest.raises(UntrustedRecordError):
        KubernetesLauncher(SYSTEM_CLOCK).handle_at(place, _recorded(place, **data))


def test_the_place_of_a_record_is_that_of_its_reader(tmp_path: Path) -> None:
    """A record of a different machine has another folder, and maybe the address of its API server: neither is taken."""
    place = _place(tmp_path)
    recorded = _recorded(place, folder="/elsewhere", cluster="https://evil.example")
    found = KubernetesLauncher(SYSTEM_CLOCK).handle_at(place, recorded)
    assert found.data["folder"] == place.folder
    assert "cluster" not in found.data
    assert (found.data["uid"], found.data["parts"]) == ("4f1d-2", 2)
    with pytest.raises(UntrustedRecordError):
        KubernetesLauncher(SYSTEM_CLOCK).handle_at(place, replace(recorded, launch_key="d-0001-a0002"))


@pytest.mark.parametrize("notes", [{}, {SCOPE_NOTE: "home/another", KEY_NOTE: KEY}, {SCOPE_NOTE: SCOPE, KEY_NOTE: "x"}])
def test_a_pod_that_was_not_made_for_the_launch_is_unknown(tmp_path: Path, notes: dict[str, str]) -> None:
    """Its log is not shown, and it is not ended, whatever uid the record names."""
    pod = {"metadata": {"name": pod_name(SCOPE, KEY), "uid": "4f1d-2", "annotations": notes}, "status": {}}
    with hostile_server(answering({pod_name(SCOPE, KEY): pod, "log": "a secret"})) as server:
        place = _place(tmp_path, server.url)
        one = KubernetesLauncher(SYSTEM_CLOCK)
        handle = one.handle_at(place, _recorded(place))
        status = one.status(handle)
        assert (status.state, "not made for this launch" in status.reason) == ("unknown", True)
        assert one.kill(handle, 1.0).state == "unknown"
        assert one.logs(handle, 1000) == ""
        assert {path.rpartition("/")[2] for path in server.paths} == {pod_name(SCOPE, KEY)}


def test_no_redirect_of_an_api_server_is_followed(tmp_path: Path) -> None:
    """The other server is not asked, and gets no token."""
    with hostile_server(answering({})) as other, hostile_server(redirecting(other.url)) as server:
        place = _place(tmp_path, server.url)
        one = KubernetesLauncher(SYSTEM_CLOCK)
        status = one.status(one.handle_at(place, _recorded(place)))
        assert (status.state, server.paths != [], other.paths) == ("unknown", True, [])


@pytest.mark.parametrize("act", [dripping, endless])
def test_an_answer_without_end_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    """By its time or by its size."""
    monkeypatch.setattr(kubernetes_api, "CALL_SECONDS", 0.5)
    monkeypatch.setattr(kubernetes_api, "MOST_BYTES", 1 << 20)
    with hostile_server(act) as server:
        place = _place(tmp_path, server.url)
        one = KubernetesLauncher(SYSTEM_CLOCK)
        assert one.status(one.handle_at(place, _recorded(place))).state == "unknown"


@pytest.mark.parametrize("act", [dripping, endless])
def test_a_log_without_end_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    """What came of it by then is shown, or nothing."""
    monkeypatch.setattr(kubernetes, "_LOG_SECONDS", 0.5)
    monkeypatch.setattr(kubernetes, "_MOST_LOG_BYTES", 1 << 20)
    notes = {SCOPE_NOTE: SCOPE, KEY_NOTE: KEY}
    pod = {"metadata": {"name": pod_name(SCOPE, KEY), "uid": "4f1d-2", "annotations": notes}, "status": {}}
    with hostile_server(answering({pod_name(SCOPE, KEY): pod}, act)) as server:
        place = _place(tmp_path, server.url)
        one = KubernetesLauncher(SYSTEM_CLOCK)
        assert len(one.logs(one.handle_at(place, _recorded(place)), 1000)) <= 1000


@pytest.mark.parametrize(
    "forged",
    [
        {"volumes": "host:/:/node"},
        {"env_from_secrets": "fernet-key,DB=airflow-metadata/connection"},
        {"service_account": "cluster-admin"},
        {"pod_template": '{"spec": {"hostPID": true}}'},
        {"image_pull_secrets": "another-registry"},
        {"labels": "app=payments"},
        {"annotations": "iam.amazonaws.com/role=admin"},
        {"node_selector": "node-role.kubernetes.io/control-plane="},
        {"tolerations": [{"operator": "Exists"}]},
        {"priority_class": "system-node-critical"},
    ],
)
def test_a_forged_spec_chooses_nothing_beyond_its_pod(forged: dict[str, object]) -> None:
    """The attack: in an allowed cluster a driver gives its successor the node, any Secret, or the traffic of
    a different service. An image, and how much it needs, are as free as its script."""
    allowed = Allowed.parse({"launchers": [{"launcher": "kubernetes", "options": {"context": "prod"}}]})
    free = {"context": "prod", "image": "any/image:7", "cpu": "2", "memory_limit": "4Gi", "python": "python3.12"}
    allowed.check_place(AllowedPlace.of("kubernetes", "", free, KubernetesLauncher.reaching))
    with pytest.raises(InvalidRequestError, match="may not be at this place"):
        allowed.check_place(AllowedPlace.of("kubernetes", "", {**free, **forged}, KubernetesLauncher.reaching))


@pytest.mark.parametrize(
    "template",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\nkind: Pod\nspec: {}\n",
        "a: &a {b: *a}\nspec: {}\n",
        f"spec: {{}}\na: {'[' * 5000}{']' * 5000}\n",
        f"spec: {{}}\na: {'1' * 5000}\n",
        "spec: {}\na: 2026-02-30\n",
        f"spec: {{}}\na: {'x' * 300_000}\n",
    ],
)
def test_a_pod_template_is_bounded(template: str) -> None:
    """The attack: 300 bytes of aliases expand to gigabytes once they are JSON."""
    with pytest.raises(InvalidRequestError, match="no plain YAML of a pod"):
        KubernetesOptions.from_options({"pod_template": template}).template()
    with pytest.raises(InvalidRequestError):
        KubernetesOptions.from_options({"tolerations": "[" * 100_000})
