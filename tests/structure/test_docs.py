"""The documentation describes what the code does: checked, not hoped."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate import errors
from airflow_streamstate.protocol.codec import Message, from_json, to_json
from support.messages import KINDS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ERRORS = [
    cls
    for cls in vars(errors).values()
    if inspect.isclass(cls) and issubclass(cls, errors.StreamStateError) and cls is not errors.StreamStateError
]
ENTRANCES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
EXAMPLES = re.findall(r"```json\n(.*?)```", (DOCS / "reference" / "protocol.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: str(json.loads(text).get("kind")))
def test_every_example_of_the_protocol_is_read_and_written_as_shown(text: str) -> None:
    """docs/reference/protocol.md shows messages that the package reads, and writes in the same form."""
    raw = json.loads(text)
    assert to_json(from_json(raw, key="docs/reference/protocol.md", expected=Message)) == raw


def test_the_protocol_page_names_every_kind() -> None:
    """No kind of message is undocumented."""
    page = (DOCS / "reference" / "protocol.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in page] == []


@pytest.mark.parametrize("page", ENTRANCES, ids=lambda path: path.name)
def test_every_link_of_an_entrance_leads_somewhere(page: Path) -> None:
    """What is outside of the site links to files that exist. The strict build sees to the links between pages."""
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_is_short() -> None:
    """A stranger reads it in two minutes: 400 words, one picture, one DAG."""
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 400
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1
    assert text.count("```python\n") == 1


@pytest.mark.parametrize("command", [".venv/bin/tox -e demo", ".venv/bin/tox -p 2 -o"])
def test_each_command_of_the_readme_is_one_line_for_a_fresh_clone(command: str) -> None:
    """It makes the environment, installs tox and runs, alone or after the other one. CI runs the same two."""
    alone = f"python3 -m venv .venv && .venv/bin/pip install -q tox-uv && {command}"
    assert f"```bash\n{alone}\n```" in (ROOT / "README.md").read_text()
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()


def test_the_limits_are_one_table() -> None:
    """Area, limit, workaround: at most thirty short rows, those that a user is most likely to meet."""
    page = (DOCS / "reference" / "limits.md").read_text()
    assert page.count("|---|---|---|") == 1
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in page.splitlines() if line.startswith("| ")][1:]
    assert [row for row in rows if len(row) not in (2, 3) or not row[1].startswith("**")] == []
    assert [row for row in rows if len(row[1]) > 400] == []
    assert 20 <= len(rows) <= 30


def test_the_docs_are_short() -> None:
    """A reader finds what counts: at most 60,000 words in all, and at most 1,000 on a how-to page."""
    words = {str(page.relative_to(DOCS)): len(page.read_text().split()) for page in DOCS.rglob("*.md")}
    assert {name: count for name, count in words.items() if name.startswith("how-to/") and count > 1000} == {}
    left = 60_000 - sum(words.values())
    longest = sorted(words.items(), key=lambda page: -page[1])[:12]
    assert left >= 0, f"{left} words left; longest: {', '.join(f'{name} {count:,}' for name, count in longest)}"


def test_each_operator_and_sensor_is_in_the_reference() -> None:
    """The pages are generated from the docstrings of the classes that the provider names."""
    from airflow_streamstate.provider_info import get_provider_info

    info = get_provider_info()
    for kind in ("operators", "sensors"):
        page = (DOCS / "reference" / f"{kind}.md").read_text()
        rooms: Any = info[kind]
        assert [module for room in rooms for module in room["python-modules"] if f"::: {module}." not in page] == []


def test_the_project_speaks_of_itself_alone() -> None:
    """No page, module or recording names a place or a tool of the machine on which it was written."""
    pattern = re.compile(r"/work/|/tmp/bash|subagent|\.\./shared", re.IGNORECASE)
    files = [
        p for top in ("airflow_streamstate", "dags", "docs", "demo") for p in (ROOT / top).rglob("*") if p.is_file()
    ]
    texts = [p for p in [*files, ROOT / "README.md"] if p.suffix in {".py", ".md", ".sh", ".html", ".toml"}]
    texts += [p for p in (ROOT / "tests" / "golden").rglob("*") if p.suffix in {".json", ".txt"}]
    assert [str(path) for path in texts if pattern.search(path.read_text())] == []


def test_what_the_pages_take_from_code_is_as_the_code_has_it() -> None:
    """Quotes of DAGs, and the tables of errors, settings and states (python docs/refresh.py refreshes them)."""
    import runpy

    refresh = runpy.run_path(str(DOCS / "refresh.py"))
    pages = {str(page.relative_to(DOCS)): page.read_text() for page in DOCS.rglob("*.md")}
    assert [name for name, text in pages.items() if refresh["refreshed"](text) != text] == []
    shown = {name for text in pages.values() for name in re.findall(r"<!-- table (\w+) -->", text)}
    assert shown == set(refresh["TABLES"])
    assert (ROOT / "provider.yaml").read_text() == refresh["registry"]()


def test_every_include_of_a_file_is_one() -> None:
    """A formatter that takes ``--8<--`` for Python writes ``--8 < --``, and the page then shows that."""
    pages = {page.name: page.read_text() for page in DOCS.rglob("*.md")}
    assert [name for name, text in pages.items() if re.search(r"--8\s+<|<\s+--", text)] == []
    included = [place for text in pages.values() for place in re.findall(r'--8<-- "([^"]+)"', text)]
    assert included
    assert [place for place in included if not (ROOT / place.partition(":")[0]).exists()] == []


@pytest.mark.fast
def test_every_python_snippet_stands() -> None:
    """What is not quoted from a file parses, and imports what is there."""
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        for quoted, text in re.findall(r"^([^\n]*)\n```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            if "<!-- quote " in quoted:
                continue
            for node in ast.parse(text).body:
                if isinstance(node, ast.ImportFrom):
                    module = importlib.import_module(str(node.module))
                    assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == [], page


def test_the_page_of_plans_has_every_setting_that_is_kept() -> None:
    """docs/reference/plans.md names each, and no other."""
    from airflow_streamstate.plan.model import SETTINGS

    listed = re.findall(r"^- `(spark\.[^`]+)`$", (DOCS / "reference" / "plans.md").read_text(), re.MULTILINE)
    assert sorted(listed) == list(SETTINGS)


def test_the_compatibility_page_is_what_was_lived() -> None:
    """docs/reference/compatibility.md is made of docs/compatibility.json (python docs/compatibility.py).

    So are the moves that a plan knows. What was not run is marked as such, and the Sparks and formats are those of the
    tests.
    """
    import runpy

    from support.spark_matrix import cells
    from support.sparks import VERSIONS

    made = runpy.run_path(str(DOCS / "compatibility.py"))
    results = json.loads((DOCS / "compatibility.json").read_text())
    assert made["page"](results) == (DOCS / "reference" / "compatibility.md").read_text()
    assert made["packed"](results) == (ROOT / "airflow_streamstate" / "plan" / "spark_moves.json").read_text()
    assert (made["SPARKS"], results["cells"]) == (VERSIONS, cells())
    assert {life["outcome"] for life in results["lives"]} <= {"exact", "refused", "failed"}
    assert made["NOT_RUN"] in made["page"]({**results, "lives": []})


def test_the_ways_back_that_are_let_through_are_those_that_were_gone() -> None:
    """A restore on an older line of Spark is let through where it was run and exact; where it failed it is refused,
    and the refusal has the reason."""
    from airflow_streamstate.checkpoint.guards import GONE_BACK, OLDER_LISTS, ROCKSDB_PROVIDER, line_of, why_not
    from support.spark_matrix import CELLS, Life, expected, store_of

    gone: dict[str, set[object]] = {provider: set() for provider in GONE_BACK}
    for life in json.loads((DOCS / "compatibility.json").read_text())["lives"]:
        lived = Life(life["spark"], life["do"], life["cell"], life["of"], life["how"])
        assert life["outcome"] in expected(lived), life
        way = (line_of(life["of"] or life["spark"]), line_of(life["spark"]))
        if life["how"] != "restore" or not way[0] > way[1]:
            continue
        provider, offset_log = store_of(life["cell"]), CELLS[life["cell"]].get("offset_log", 1)
        if life["outcome"] == "exact":
            gone[provider].add(way)
        else:
            reason = why_not(life["of"], life["spark"], provider, f"v{offset_log}")
            assert "never tried" not in (reason or "never tried"), life
    gone[OLDER_LISTS] |= gone[ROCKSDB_PROVIDER]  # what goes with any lists goes with older ones
    assert [way for provider, ways in GONE_BACK.items() for way in ways - gone[provider]] == []
