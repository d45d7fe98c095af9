"""What an Airflow Spark connection says, as the beginning of a ``spark-submit`` command: the adapter to the provider.

The provider's hook builds the command (master, queue, namespace, keytab …), and only that is taken of it: its own
``submit`` blocks on a pipe, so a driver would live and die with the Airflow worker. ``_build_spark_submit_command``,
``_connection`` and ``_env`` are private and have been the same from 4.11 to 6.3; a contract test holds them.
The provider is imported when it is needed, and only then.
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
        environment: variables that it needs beside the launcher's own.
    """

    master: str
    spark_submit: tuple[str, ...]
    environment: Mapping[str, str]


def spark_submission(spark_conn_id: str) -> SparkSubmission:
    """What the connection says.

    Raises:
        InvalidRequestError: the connection or the provider is not there, or it asks for cluster mode.
    """
    hook = _provider_hook(spark_conn_id)
    if hook._connection["deploy_mode"] == "cluster":
        raise InvalidRequestError(
            "this Spark connection asks for cluster mode, in which no launcher here starts drivers",
            spark_conn_id=spark_conn_id,
            next_step="Use the deploy mode client.",
        )
    command = [str(word) for word in hook._build_spark_submit_command(_APPLICATION)]
    if command[-1] != _APPLICATION or command[1:2] != ["--master"]:
        raise InvalidRequestError(
            "the installed apache-spark provider builds its command in a way that is not known here",
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
        return SparkSubmitHook(conn_id=spark_conn_id, name="")  # a name would win over the script's own
    except (ValueError, RuntimeError, NameError) as error:  # NameError: a k8s master without the cncf provider
        raise InvalidRequestError(
            "the apache-spark provider refuses this connection",
            spark_conn_id=spark_conn_id,
            reason=str(error),
            next_step="Correct the connection.",
        ) from error


def _need_connection(spark_conn_id: str) -> None:
    # The provider takes a connection that is not there for `--master yarn`, and says so in a log line only.
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
    # Client mode is the launcher's own; twice the same option is an error nowhere, but a question to every reader.
    at = words.index(option) if option in words else None
    return tuple(words if at is None else words[:at] + words[at + 2 :])
