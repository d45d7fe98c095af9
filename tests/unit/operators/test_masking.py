"""Secrets among an operator's fields."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.log import redact

from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.operators.snapshot import ExportStateOperator, MirrorSnapshotsOperator, VerifySnapshotOperator
from airflow_streamstate.operators.upgrade import RollbackStreamOperator, UpgradeStreamOperator

SHOWN = [
    ("conf", {"spark.hadoop.fs.s3a.secret.key": "{}"}),
    ("conf", '{{"spark.hadoop.fs.s3a.secret.key": "{}"}}'),
    ("arguments", ["--password", "{}"]),
    ("arguments", '["--password", "{}"]'),
    ("environment", {"API_TOKEN": "{}"}),
    ("jars", ["https://someone:{}@example.org/a.jar"]),
    ("jars", "https://someone:{}@example.org/a.jar"),
    ("master", "spark://someone:{}@example.org:7077"),
    ("undo_command", ["undo", "--password", "{}"]),
    ("undo_command", '["undo", "--password", "{}"]'),
    ("out", "s3a://someone:{}@bucket/out"),
    ("mirrors", ["s3://someone:{}@bucket/mirror"]),
]
OPERATORS = (
    DeployStreamOperator, PlanUpgradeOperator, UpgradeStreamOperator, RollbackStreamOperator, ExportStateOperator,
    VerifySnapshotOperator, MirrorSnapshotsOperator,
)  # fmt: skip
NEEDED = {
    DeployStreamOperator: {"application": "job.py"},
    ExportStateOperator: {"out": "/out"},
    VerifySnapshotOperator: {"snapshot_id": "d-0001-live-000001"},
}
CASES = [(each, *shown) for each in OPERATORS for shown in SHOWN if shown[0] in each.template_fields]


def made(operator: type[Any]) -> Any:
    return operator(task_id="t", stream_id="flights", **NEEDED.get(operator, {}))


def with_secret(value: Any, secret: str) -> Any:
    if isinstance(value, str):
        return value.replace("{{", "{").replace("}}", "}").replace("{}", secret)
    if isinstance(value, dict):
        return {key: with_secret(each, secret) for key, each in value.items()}
    return [with_secret(each, secret) for each in value]


@pytest.mark.parametrize(("operator", "field", "value"), CASES)
def test_a_secret_is_hidden_from_the_moment_its_field_is_rendered(
    operator: type[Any], field: str, value: Any, request: pytest.FixtureRequest
) -> None:
    """By value, in whatever Airflow shows from then on."""
    task = made(operator)
    secret = f"battery-{abs(hash(request.node.name))}"
    assert secret in str(redact(f"it is {secret}"))
    setattr(task, field, with_secret(value, secret))
    assert secret not in str(redact(f"it is {secret}"))


@pytest.mark.parametrize("value", [7, "no mapping", ["a"], None, {"a": 1}])
def test_what_is_no_mapping_is_left_to_be_refused_by_the_run(value: Any) -> None:
    """Rendering raises nothing."""
    task = made(UpgradeStreamOperator)
    task.conf = value
    assert task.conf == value
