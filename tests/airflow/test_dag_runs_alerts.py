"""The example DAG of alerts by ``dag.test()``, over drivers that run no Spark."""

from __future__ import annotations

from typing import Any

import pytest

from support.airflow_streams import NamedHome
from support.dag_results import returned, states

pytestmark = [
    pytest.mark.named,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Using .httpx. with"),  # Airflow's in-process API server, not ours
]


def test_two_runs_tell_a_failure_once(scripted: NamedHome, run_dag: Any) -> None:
    """The second run finds what the first one reported in the home."""
    attempt = scripted.stream("flights").deploy()
    attempt.claim()
    attempt.started()
    attempt.failed("ValueError: boom")
    first = run_dag("alerts")
    assert set(states(first).values()) == {"success"}, states(first)
    (told,) = returned(first, "look")["told"]
    assert (told["kind"], told["stream_id"], told["rule"]) == ("raised", "flights", "driver_dead")
    second = returned(run_dag("alerts"), "look")
    assert (second["told"], second["standing"]) == ([], {"flights": ["driver_dead"]})
