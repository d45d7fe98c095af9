"""The adapter to the apache-spark provider, held to the installed one."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.connection import spark_submission
from airflow_streamstate.launch.submit_options import read_prefix


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(host: str, extra: dict[str, Any] | None = None, **more: Any) -> str:
        value = {"conn_type": "spark", "host": host, "extra": extra or {}, **more}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps(value))
        return "spark_test"

    return make


def test_the_installed_provider_has_what_is_used_of_it() -> None:
    """Three private names, the same from 4.11 on: a release without one of them fails here first."""
    hook = inspect.getsource(SparkSubmitHook)
    assert "def _build_spark_submit_command(self, application: str) -> list[str]" in hook
    assert "self._connection = " in hook
    assert "self._env: " in hook


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:7077", "yarn"])
def test_the_master_is_that_of_the_connection(connection: Any, master: str) -> None:
    """It is in the command, so it is not given twice."""
    found = spark_submission(connection(master))
    assert found.master == master
    assert found.spark_submit == ("spark-submit", "--master", master)
    assert found.environment == {}


def test_host_and_port_are_one_master(connection: Any) -> None:
    """A connection may have them apart."""
    assert spark_submission(connection("spark://127.0.0.1", port=7077)).master == "spark://127.0.0.1:7077"


def test_what_the_connection_adds_is_kept(connection: Any) -> None:
    """Queue, principal and binary reach the command; the deploy mode is the launcher's own."""
    extra = {"queue": "streams", "deploy-mode": "client", "principal": "ada", "spark-binary": "spark3-submit"}
    found = spark_submission(connection("yarn", extra))
    assert found.spark_submit == (
        "spark3-submit", "--master", "yarn", "--principal", "ada", "--queue", "streams"
    )  # fmt: skip


def test_the_launcher_can_read_what_the_provider_built(connection: Any) -> None:
    """The launcher takes lists and configuration out of a prefix, and leaves the rest."""
    rest, options = read_prefix(spark_submission(connection("yarn", {"queue": "q"})).spark_submit[1:])
    assert rest == ("--master", "yarn", "--queue", "q")
    assert options.master == "yarn"


def test_a_missing_connection_is_an_error_and_not_yarn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider itself would start the job on YARN, and report it in a log line."""
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_TEST", raising=False)
    with pytest.raises(InvalidRequestError, match=r"no such Spark connection\. spark_conn_id=spark_test"):
        spark_submission("spark_test")


def test_a_connection_without_a_master_is_an_error(connection: Any) -> None:
    """An empty host is no master either."""
    with pytest.raises(InvalidRequestError, match="names no master"):
        spark_submission(connection(""))


def test_cluster_mode_is_refused_by_name(connection: Any) -> None:
    """A driver somewhere in a cluster is nothing that a local launcher can answer for."""
    with pytest.raises(InvalidRequestError, match="cluster mode"):
        spark_submission(connection("spark://127.0.0.1:7077", {"deploy-mode": "cluster"}))


def test_what_the_provider_refuses_is_told_in_its_words(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary that it does not allow, or a Kubernetes master without its own provider."""
    with pytest.raises(InvalidRequestError, match="reason="):
        spark_submission(connection("local[2]", {"spark-binary": "/tmp/evil"}))
    # As where the provider for Kubernetes is not installed.
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.kube_client", None, raising=False)
    with pytest.raises(InvalidRequestError, match="reason="):
        spark_submission(connection("k8s://127.0.0.1"))
