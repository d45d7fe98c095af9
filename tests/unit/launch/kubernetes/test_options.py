"""Options of the Kubernetes launcher, as a command line and as YAML give them."""

from __future__ import annotations

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.kubernetes_api import KubernetesOptions, Volume


def test_texts_and_objects_mean_the_same() -> None:
    """A command line knows only texts; YAML and Python have lists and objects."""
    texts = {
        "node_selector": "pool=streams,disk=ssd",
        "tolerations": '[{"key": "spark", "operator": "Exists"}]',
        "env_from_secrets": "all-of-it,TOKEN=one/token",
        "volumes": "claim:data:/data:ro,host:/mnt:/mnt",
        "image_pull_secrets": "a,b",
        "keep_pods": "3",
        "cpu": "0.5",
        "labels": '{"team": 7, "is-new": true}',
    }
    objects = {
        "node_selector": {"pool": "streams", "disk": "ssd"},
        "tolerations": [{"key": "spark", "operator": "Exists"}],
        "env_from_secrets": ["all-of-it", "TOKEN=one/token"],
        "volumes": ["claim:data:/data:ro", "host:/mnt:/mnt"],
        "image_pull_secrets": ["a", "b"],
        "keep_pods": 3,
        "cpu": 0.5,
        "labels": {"team": 7, "is-new": True},
    }
    found = KubernetesOptions.from_options(texts)
    assert found == KubernetesOptions.from_options(objects)
    assert found.volumes == (Volume("claim", "data", "/data", True), Volume("host", "/mnt", "/mnt", False))
    assert found.labels == {"team": "7", "is-new": "true"}
    assert found.env_from_secrets == {"all-of-it": "", "TOKEN": "one/token"}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"imge": "x"}, "Did you mean image"),
        ({"image": "two words"}, "without blanks"),
        ({"namespace": "Streams"}, "small letters"),
        ({"memory": "2 GB"}, "a quantity"),
        ({"keep_pods": "-1"}, "from 0 to 1000"),
        ({"keep_pods": True}, "from 0 to 1000"),
        ({"node_selector": "pool"}, "KEY=VALUE"),
        ({"node_selector": '{"pool": '}, "KEY=VALUE"),
        ({"tolerations": "spark"}, "a list of objects"),
        ({"env_from_secrets": "TOKEN=secret"}, "VARIABLE=secret/key"),
        ({"env_from_secrets": "A B"}, "VARIABLE=secret/key"),
        ({"volumes": "nfs:data:/data"}, "KIND:NAME:/FOLDER"),
        ({"volumes": "host:data:/data"}, "KIND:NAME:/FOLDER"),
        ({"volumes": "claim:data:/data:rw"}, "KIND:NAME:/FOLDER"),
        ({"image_pull_policy": "Sometimes"}, "one of Always"),
        ({"image_pull_secrets": "A_B"}, "names"),
        ({"pod_template": 3}, "the YAML of a pod"),
        ({"kubeconfig": "a\nb"}, "one line"),
    ],
)
def test_what_is_wrong_is_refused_by_name(raw: dict[str, object], words: str) -> None:
    """One sentence names the option and what it takes."""
    with pytest.raises(InvalidRequestError, match=words):
        KubernetesOptions.from_options(raw)


def test_a_template_is_yaml_or_an_object() -> None:
    """Both give the same pod."""
    yaml = "spec:\n  nodeSelector: {pool: streams}\n"
    wanted = {"spec": {"nodeSelector": {"pool": "streams"}}}
    for given in (yaml, wanted):
        assert KubernetesOptions.from_options({"pod_template": given}).template() == wanted
    assert KubernetesOptions().template() == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("/nowhere/pod.yaml", "not a path"),
        ("metadata: {annotations: {since: 2026-01-01}}\n", "a date without quotes"),
        ("spec: [\n", "is no YAML"),
        ("kind: Service\nspec: {}\n", "not the YAML of one pod"),
        ("- a\n- b: c\n", "not the YAML of one pod"),
        ("spec: [a]\n", "the spec of the pod template is no object"),
    ],
)
def test_a_template_that_is_none_is_refused(given: str, words: str) -> None:
    """With the line, or what it should be."""
    with pytest.raises(InvalidRequestError, match=words):
        KubernetesOptions.from_options({"pod_template": given}).template()
