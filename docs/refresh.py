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
from pathlib import Path

from airflow_streamstate import errors
from airflow_streamstate.controller.observe.observation import markdown_table
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


def table_of_settings() -> str:
    """Each setting of the agent with its default and what its docstring says."""
    attributes = (inspect.getdoc(AgentSettings) or "").partition("Attributes:\n")[2]
    said = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", attributes, re.DOTALL | re.MULTILINE)
    meanings = {name: " ".join(meaning.split()) for name, meaning in said}
    defaults = {
        field.name: "off" if field.default is None else str(field.default).removesuffix(".0")
        for field in dataclasses.fields(AgentSettings)
    }
    body = [(f"`{name}`", default, meanings[name]) for name, default in defaults.items()]
    return rows(("setting", "default", "meaning"), body)


TABLES: Mapping[str, Callable[[], str]] = {
    "errors": table_of_errors,
    "settings": table_of_settings,
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
