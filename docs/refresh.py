"""Refresh what the pages take from code: ``python docs/refresh.py``. A test fails when a page is stale.

A quote is a fenced block below a comment that names a file and one of its START/END sections. A table is what stands
between ``<!-- table NAME -->`` and ``<!-- end of table -->``; ``TABLES`` makes it from the package.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from airflow_streamstate import errors
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.observation import markdown_table
from airflow_streamstate.plan import model
from airflow_streamstate.protocol.settings import AgentSettings

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
QUOTE = re.compile(r"(<!-- quote (?P<file>\S+) (?P<section>\w+) -->\n```python\n)(?P<text>.*?)(```)", re.DOTALL)
TABLE = re.compile(r"(<!-- table (?P<name>\w+) -->\n\n).*?(\n<!-- end of table -->)", re.DOTALL)


def section_of(file: str, section: str) -> str:
    """The lines between ``# [START section]`` and ``# [END section]`` of a file of the repository."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"# \[START {section}\]\n(.*?)\n*# \[END {section}\]", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{file} has no section {section}")
    return found.group(1).strip("\n") + "\n"


def rows(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    titles = list(head)
    lines = [f"| {' | '.join(cells)} |" for cells in (titles, *body)]
    return "\n".join([lines[0], "|---" * len(titles) + "|", *lines[1:]])


def table_of_errors() -> str:
    """Each error with its remedy and the first line of its docstring, in the order of ``errors.py``."""
    found = [
        cls
        for cls in vars(errors).values()
        if inspect.isclass(cls) and issubclass(cls, errors.StreamStateError) and cls is not errors.StreamStateError
    ]
    return rows(
        ("error", "remedy", "when"),
        ((f"`{cls.__name__}`", cls.remedy.value, (inspect.getdoc(cls) or "").splitlines()[0]) for cls in found),
    )


def meanings_of(cls: type) -> dict[str, str]:
    """What the docstring of a class says of each field."""
    attributes = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    said = re.findall(r"^    (\w+(?:, \w+)*): (.*?)(?=^    \w+(?:, \w+)*: |\Z)", attributes, re.DOTALL | re.MULTILINE)
    return {name: " ".join(meaning.split()).replace("``", "`") for names, meaning in said for name in names.split(", ")}


def table_of_fields(cls: type) -> str:
    """Each field of a message with what its docstring says."""
    meanings = meanings_of(cls)
    return rows(("field", "meaning"), ((f"`{field.name}`", meanings[field.name]) for field in dataclasses.fields(cls)))


def table_of_settings() -> str:
    """Each setting of the agent with its default and what its docstring says."""
    meanings = meanings_of(AgentSettings)
    defaults = {
        field.name: "off" if field.default is None else str(field.default).removesuffix(".0")
        for field in dataclasses.fields(AgentSettings)
    }
    body = [(f"`{name}`", default, meanings[name]) for name, default in defaults.items()]
    return rows(("setting", "default", "meaning"), body)


def table_of_client() -> str:
    """Each method of the client with its arguments and the first line of its docstring."""
    methods = [
        (name, method)
        for name, method in vars(Controller).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]
    body = (
        (f"`{name}({', '.join(list(inspect.signature(method).parameters)[1:])})`", summary_of(method))
        for name, method in methods
    )
    return rows(("method", "what it does"), body)


def summary_of(thing: object) -> str:
    """The first paragraph of a docstring in one line, without what it raises."""
    words = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()).replace("``", "`")
    return re.sub(r" (Raises|Arguments and errors) .*", "", words)


TABLES: Mapping[str, Callable[[], str]] = {
    "errors": table_of_errors,
    "settings": table_of_settings,
    "client": table_of_client,
    "plan": partial(table_of_fields, model.QueryPlan),
    "plan_sources": partial(table_of_fields, model.PlannedSource),
    "plan_operators": partial(table_of_fields, model.StateOperator),
    "plan_inputs": partial(table_of_fields, model.OperatorInput),
    "plan_sink": partial(table_of_fields, model.PlannedSink),
    "plan_state": partial(table_of_fields, model.StateLayout),
    "states": markdown_table,
}


def refreshed(page: str) -> str:
    """The page with every quote and every table as the code has it now."""
    page = QUOTE.sub(lambda m: m.group(1) + section_of(m["file"], m["section"]) + m.group(5), page)
    return TABLE.sub(lambda m: f"{m.group(1)}{TABLES[m['name']]().strip()}\n{m.group(3)}", page)


def main() -> int:
    """Write every page anew; returns 0."""
    for page in sorted(DOCS.rglob("*.md")):
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
