"""The operators that change what a stream runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.operators.base import ChangingOperator
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator

OPERATORS = [PlanUpgradeOperator, UpgradeStreamOperator]


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_same_words_are_the_same_change(operator: type[ChangingOperator], tmp_path: Path) -> None:
    """What was planned is what is upgraded to."""
    (tmp_path / "lib.py").write_text("")
    words: dict[str, Any] = {
        "stream_id": "flights", "application": None, "arguments": '["a"]', "conf": {"spark.x": True},
        "py_files": [str(tmp_path / "lib.py")], "allow_new_queries": ["new"], "allow_state_loss": "True",
        "reason": "why",
    }  # fmt: skip
    change = operator(task_id="t", **words).change()
    given = change.patch.values
    assert (given["arguments"], given["conf"]) == (("a",), {"spark.x": "true"})
    assert [file.name for file in given["py_files"]] == ["lib.py"]
    assert "application" not in given
    assert (change.terms.allow_new_queries, change.terms.allow_state_loss) == (("new",), True)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("field", "value"), [("arguments", "--a b"), ("conf", "a=b"), ("allow_state_loss", "maybe")])
def test_what_cannot_be_meant_is_refused(operator: type[ChangingOperator], field: str, value: Any) -> None:
    """By name."""
    with pytest.raises(InvalidRequestError):
        operator(task_id="t", stream_id="flights", **{field: value}).change()


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_label_is_part_of_a_change_only_where_one_is_given(operator: type[ChangingOperator]) -> None:
    """A request without one keeps its digest: a task that is cleared finds what it started."""
    plain = operator(task_id="t", stream_id="flights").change()
    labelled = operator(task_id="t", stream_id="flights", version_label="v7").change()
    assert "version_label" not in plain.patch.values
    assert labelled.patch.values["version_label"] == "v7"
    assert len({plain.digest, labelled.digest}) == 2
    assert plain.digest == operator(task_id="t", stream_id="flights", version_label="").change().digest
