"""What is known of where Spark shows configuration, compared with Spark."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_streamstate.controller.request.patch import check_secrets
from airflow_streamstate.errors import InvalidRequestError

pytestmark = pytest.mark.spark
NAMES = (
    "spark.authenticate", "spark.authenticate.secret", "spark.authenticate.secret.file", "spark.auth.token",
    "spark.rpc.a", "spark.rpcfoo", "spark.network.crypto.password", "spark.networkx", "spark.ssl.keyPassword",
    "spark.ssl.rpc.keyStore", "spark.ssl.rpc.privateKeyPassword", "spark.driver.port", "spark.port.maxRetries",
    "spark.port", "spark.my.port", "spark.executorEnv.X", "spark.hadoop.x", "spark.hadoop.port.x", "spark.sport",
    "spark.yarn.port",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_spark_puts_on_executors_command_lines_takes_no_reference(spark: Any, name: str) -> None:
    """By Spark's own word on each name: such a reference is refused, and no other."""
    is_shown = bool(spark._jvm.org.apache.spark.SparkConf.isExecutorStartupConf(name))
    if is_shown:
        with pytest.raises(InvalidRequestError, match="command line"):
            check_secrets({name: "env://KEY"}, (), {}, may_be_literal=True)
    else:
        check_secrets({name: "env://KEY"}, (), {}, may_be_literal=True)
