"""An Airflow Spark connection as the beginning of a ``spark-submit`` command, built by the apache-spark provider.

Only the command of the provider's hook is used (master, queue, namespace, keytab …): its ``submit`` blocks on a pipe,
so that a driver would end with the Airflow worker. ``_build_spark_submit_command``, ``_connection`` and ``_env`` are
private, the same from 4.11 to 6.3, and held by a contract test. The provider is imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_streamstate.errors import InvalidRequestError

_APPLICATION = "<application>"
_DEPLOY_MODE = "--deploy-mode"


@dataclass(frozen=True)
class SparkSubmission:
    """How a Spark connection wants drivers to be started.

    Attributes:
        master: Spark's master URL.
        spark_submit: the command with its first options; it names the master already.
        environment: variables in addition to the launcher's own.
    """

    master: str
    spark_submit: tuple[str, ...]
    environment: Mapping[str, str]


def spark_submission(spark_conn_id: str) -> SparkSubmission:
    """The submission that a connection describes.

    Raises:
        InvalidRequestError: the connection or the provider is not there, or it asks for cluster mode.
    """
    hook = _provider_hook(spark_conn_id)
    if hook._connection["deploy_mode"] == "cluster":
        raise InvalidRequestError(
            "this Spark connection asks for cluster mode, and its drivers run on this machine",
            spark_conn_id=spark_conn_id,
            next_step="Use the deploy mode client; for drivers elsewhere give a launcher instead.",
        )
    command = [str(word) for word in hook._build_spark_submit_command(_APPLICATION)]
    if command[-1] != _APPLICATION or command[1:2] != ["--master"]:
        raise InvalidRequestError(
            "the installed apache-spark provider builds an unknown form of spark-submit command",
            spark_conn_id=spark_conn_id,
            next_step="Use apache-airflow-providers-apache-spark from 5.0 to below 7, or no spark_conn_id.",
        )
    return SparkSubmission(
        master=str(hook._connection["master"]),
        spark_submit=_without_option(command[:-1], _DEPLOY_MODE),
        environment={str(name): str(value) for name, value in (hook._env or {}).items()},
    )


def _provider_hook(spark_conn_id: str) -> Any:
    _need_connection(spark_conn_id)
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    except ImportError as error:
        raise InvalidRequestError(
            "a Spark connection needs the apache-spark provider, which is not installed here",
            spark_conn_id=spark_conn_id,
            missing=error.name or str(error),
            next_step="Install airflow-streamstate[spark].",
        ) from error
    try:
        return SparkSubmitHook(conn_id=spark_conn_id, name="")  # a name would override the script's own
    except (ValueError, RuntimeError, NameError) as error:  # NameError: a k8s master without the cncf provider
        raise InvalidRequestError(
            "the apache-spark provider refuses this connection",
            spark_conn_id=spark_conn_id,
            reason=str(error),
            next_step="Correct the connection.",
        ) from error


def _need_connection(spark_conn_id: str) -> None:
    # For a missing connection the provider would use `--master yarn`, with only a log line.
    from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

    try:
        connection = BaseHook.get_connection(spark_conn_id)
    except AirflowNotFoundException:
        connection = None
    if connection is None or not (connection.host or connection.conn_type != "spark"):
        raise InvalidRequestError(
            "there is no such Spark connection" if connection is None else "this Spark connection names no master",
            spark_conn_id=spark_conn_id,
            next_step="Create a connection of type spark whose host is the master, e.g. spark://HOST:7077 or local[2].",
        )


def _without_option(words: list[str], option: str) -> tuple[str, ...]:
    # The launcher itself sets client mode.
    at = words.index(option) if option in words else None
    return tuple(words if at is None else words[:at] + words[at + 2 :])
