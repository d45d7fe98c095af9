"""What a person reads before an upgrade is approved (``dags/approved_upgrade.py``)."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from jinja2 import Environment

from airflow_streamstate.declarations.diff import FieldDifference, StreamDifference
from airflow_streamstate.hooks.rendered import plain_markdown
from airflow_streamstate.operators.declared import as_markdown
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

    environment = Environment()  # noqa: S701 - Markdown
    environment.filters["plain"] = plain_markdown
    return environment.from_string(body).render(ti=Task()).splitlines()


def test_the_form_has_sentences_and_a_table_of_changed_rows() -> None:
    """Each remedy is a separate sentence, and a row that changed has its key, its old and its new values."""
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
    assert "- delays: c (hazardous): the sum became a max. Nothing to do." in lines
    assert "- delays: c (hazardous): it has a stop. Nothing to do." in lines
    at = lines.index("  | key | old | new |")
    assert lines[at - 1] == ""
    assert lines[at + 1 : at + 4] == [
        "  |---|---|---|",
        r"  | route a\|b | s -95 | s -145 |",
        "  | cut… |  |  |",
    ]


HOSTILE = [
    "[approve here](https://evil.test/x)",
    "![seen](https://evil.test/pixel)",
    "<img src=https://evil.test/x onerror=alert(1)>",
    "<https://evil.test>",
    "https://evil.test",
    "www.evil.test",
    "`code` **bold** | cell",
    "a\n\n# heading\n[x]: https://evil.test",
    "&lt;b&gt; who@evil.test",
]
MARKUP = r"(?<!\\)[`*_\[\]()<>!|~&#]|://|www\.|[^\u200b]@"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_stream_is_markup_in_a_form(text: str) -> None:
    """Neither a link, nor a picture, nor a heading: of a plan, of a row, of a file's value."""
    shown = plain_markdown(text)
    assert re.search(MARKUP, shown) is None
    assert "\n" not in shown
    comparison = {
        "same": 4, "changed": 1, "only_old": 1, "only_new": 1, "samples_old": [text], "samples_new": [text],
        "changed_rows": [{"key": text, "old": text, "new": text}],
    }  # fmt: skip
    difference = {"code": "c", "verdict": "hazardous", "reason": text, "remedy": text}
    plan = {
        "verdict": text, "reason": text, "not_replayed": text, "queries": {text: {"differences": [difference]}},
        "replay": {"queries": {text: {"batches": [{"batch_id": 3, "comparison": comparison}]}}},
    }  # fmt: skip
    found = StreamDifference("b", "changed", "upgrade", "running", "d-0001", (FieldDifference(text, text, text),), text)
    for body in ("\n".join(form(plan)), as_markdown([found])):
        assert text not in body
        assert "://" not in body
        assert "www." not in body


def test_the_example_has_the_filter() -> None:
    """So that Airflow renders its form as these tests do."""
    assert 'user_defined_filters={"plain": plain_markdown}' in (DAGS_FOLDER / "approved_upgrade.py").read_text()
