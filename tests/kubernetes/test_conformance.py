"""The conformance suite of launchers on a real cluster, with the rights that the docs name and no others."""

from __future__ import annotations

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.launch.conformance import PROMISES, Promise
from airflow_streamstate.launch.kubernetes import KubernetesLauncher
from support.kube_stage import KubernetesStage

pytestmark = [pytest.mark.timeout(900)]
KEPT = [promise for promise in PROMISES if promise.__name__ not in KubernetesLauncher.limits]


@pytest.mark.parametrize("promise", KEPT, ids=lambda promise: promise.__name__)
def test_the_kubernetes_launcher_keeps_each_promise(stage: KubernetesStage, promise: Promise) -> None:
    """Drivers in pods keep what drivers on this machine keep (Laws 1 and 2)."""
    promise(stage)
