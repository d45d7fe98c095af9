"""What a person reads before an upgrade is approved (``dags/approved_upgrade.py``)."""

from __future__ import annotations

import ast
from typing import Any

from jinja2 import Environment

from support.airflow_home import DAGS_FOLDER


def form(plan: dict[str, Any]) -> list[str]:
    """The lines of the body for the result of the plan."""
    tree = ast.parse((DAGS_FOLDER / "approved_upgrade.py").read_text())
    (body,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == ["PLAN"]
    ]

    class Task:
        def xcom_pull(self, _task_id: str) -> dict[str, Any]:
            return plan

    return Environment().from_string(body).render(ti=Task()).splitlines()  # noqa: S701 - Markdown


def test_the_form_has_sentences_and_a_table_of_changed_rows() -> None:
    """A remedy is a sentence of its own, and a row that changed has its key, its old and its new values."""
    difference = {"code": "c", "verdict": "hazardous", "reason": "the sum became a max", "remedy": "Nothing to do."}
    comparison = {
        "same": 4, "changed": 2, "only_old": 0, "only_new": 0, "samples_old": [], "samples_new": [],
        "changed_rows": [{"key": "route a|b", "old": "s -95", "new": "s -145"}, {"key": "cut…", "old": "", "new": ""}],
    }  # fmt: skip
    batch = {"batch_id": 3, "comparison": comparison}
    lines = form(
        {
            "verdict": "hazardous", "reason": "", "not_replayed": "",
            "queries": {"delays": {"differences": [difference, {**difference, "reason": "it has a stop."}]}},
            "replay": {"queries": {"delays": {"batches": [batch]}}},
        }
    )  # fmt: skip
    assert "- `delays`: c (hazardous): the sum became a max. Nothing to do." in lines
    assert "- `delays`: c (hazardous): it has a stop. Nothing to do." in lines
    at = lines.index("  | key | old | new |")
    assert lines[at - 1] == ""
    assert lines[at + 1 : at + 4] == [
        "  |---|---|---|",
        r"  | route a\|b | s -95 | s -145 |",
        "  | cut… |  |  |",
    ]
