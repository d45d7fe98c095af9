"""Refresh what the pages take from code: ``python docs/refresh.py``. A test fails when a page is stale.

A quote is a fenced block below a comment that names a file and one of its START/END sections; the imports of the file
and the values that the section needs come before it. A table is what stands
between ``<!-- table NAME -->`` and ``<!-- end of table -->``; ``TABLES`` makes it from the package.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from airflow_streamstate import errors
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.observation import markdown_table
from airflow_streamstate.declarations.stream_file import Place, StreamDeclaration, places
from airflow_streamstate.launch.conformance import PROMISES
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.plan import model
from airflow_streamstate.protocol.events import ALL_EVENTS
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.signing import denied_to_drivers
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.provider_info import get_provider_info

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
REGISTRY = ROOT / "provider.yaml"
RELEASED_AT = 1795824000  # 2026-11-28; seconds since 1970, in which builds of the registry are dated
MOST_CHARACTERS = 120
QUOTE = re.compile(r"(<!-- quote (?P<file>\S+) (?P<section>\w+) -->\n```python\n)(?P<text>.*?)(```)", re.DOTALL)
TABLE = re.compile(r"(<!-- table (?P<name>\w+) -->\n\n).*?(\n<!-- end of table -->)", re.DOTALL)


def section_of(file: str, section: str) -> str:
    """The lines between ``# [START section]`` and ``# [END section]`` of a file, after what it needs."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"# \[START {section}\]\n(.*?)\n*# \[END {section}\]", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{file} has no section {section}")
    lines = found.group(1).strip("\n") + "\n"
    head = needed_by(lines, text[: found.start()])
    is_definition = lines.startswith(("@", "def ", "class "))
    return lines if not head else f"{head}\n{chr(10) * is_definition}{lines}"


def needed_by(lines: str, before: str) -> str:
    """The imports and assignments before a section whose names it uses, also by way of each other; "" for none."""
    used = names_in(ast.parse(lines))
    found: list[tuple[ast.stmt, str]] = []
    for node in reversed(ast.parse(before).body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [one for one in node.names if (one.asname or one.name).partition(".")[0] in used]
            words = "" if not names or getattr(node, "module", "") == "__future__" else import_of(node, names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            words = ""  # it is quoted by itself, where a page has it
        else:
            words = (ast.get_source_segment(before, node) or "") if bound_by(node) & used else ""
            used |= names_in(node) if words else set()
        if words:
            found.append((node, words))
    found.reverse()
    pairs = zip([found[0][0] if found else None, *(node for node, _ in found)], found, strict=False)
    return "".join(
        f"{chr(10) if last is not node and blank_between(before, last, node) else ''}{words}\n"
        for last, (node, words) in pairs
    )


def blank_between(text: str, last: ast.stmt | None, node: ast.stmt) -> bool:
    """Whether an empty line stands anywhere between two statements."""
    lines = text.splitlines()[(0 if last is None else last.end_lineno or 0) : node.lineno - 1]
    return any(not line.strip() for line in lines)


def names_in(tree: ast.AST) -> set[str]:
    """Every name that is used."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def bound_by(node: ast.stmt) -> set[str]:
    """The names that a statement of a module binds."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    imports = [one for one in ast.walk(node) if isinstance(one, ast.Import | ast.ImportFrom)]
    return found | {(each.asname or each.name).partition(".")[0] for one in imports for each in one.names}


def import_of(node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> str:
    """The import with these names alone."""
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import(names))
    words = ast.unparse(ast.ImportFrom(node.module, names, node.level))
    if len(words) <= MOST_CHARACTERS:
        return words
    head, _, listed = words.partition(" import ")
    return f"{head} import (\n" + "".join(f"    {one},\n" for one in listed.split(", ")) + ")"


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


def table_of_events() -> str:
    """Each event with the first sentence of its docstring."""
    said = ((event.kind, summary_of(event).split(". ")[0].rstrip(".")) for event in ALL_EVENTS)
    return rows(("kind", "meaning"), ((f"`{kind}`", f"{meaning}.") for kind, meaning in said))


def table_of_settings() -> str:
    """Each setting of the agent with its default and its meaning."""

    def default_of(one: Term) -> str:
        return "off" if one.default in (None, False, "") else str(one.default).removesuffix(".0")

    body = [
        (f"`{one.name}`", default_of(one), one.help_for(lambda other: f"`{other.name}`"))
        for one in terms_of(AgentSettings)
    ]
    return rows(("setting", "default", "meaning"), body)


METHODS = (
    "deploy",
    "resume",
    "running_same_code",
    "deployment_current_at",
    "order",
    "kill",
    "status",
    "statuses",
    "events",
    "logs",
    "wait",
)
"""The methods of the client that a task calls; the others are for triggers, watchers and the page."""


def table_of_client() -> str:
    """Each method of the client for a task, with its arguments and the first line of its docstring."""
    methods = ((name, getattr(Controller, name)) for name in METHODS)
    body = (
        (f"`{name}({', '.join(list(inspect.signature(method).parameters)[1:])})`", summary_of(method))
        for name, method in methods
    )
    return rows(("method", "what it does"), body)


OWN_TABLES: Mapping[Place, str] = {
    ("settings",): "the [settings of the agent](settings.md)",
    ("alerts",): "the thresholds of the [alert rules](../how-to/alerts.md#rules); `alerts.off` lists rules",
}
"""Objects of a file whose fields another page has."""


def table_of_declarations() -> str:
    """Every field of the file of a stream, those of its objects with a dot; settings and thresholds have own tables."""

    def fields(kind: type[BaseModel], below: Place) -> Iterator[tuple[str, str, str]]:
        for name, field in kind.model_fields.items():
            at = (*below, name)
            choices = getattr(field.annotation, "__args__", (field.annotation,))
            inner = next((one for one in choices if isinstance(one, type) and issubclass(one, BaseModel)), None)
            if at in OWN_TABLES:
                yield f"`{name}.*`", "", OWN_TABLES[at]
            elif inner is not None:
                yield from fields(inner, at)
            else:
                yield f"`{'.'.join(at)}`", default_of(field), option_of(at) or field.description or ""

    def default_of(field: FieldInfo) -> str:
        return "" if field.is_required() or field.default in (None, "", (), {}) else f"`{field.default}`".lower()

    return rows(("field", "default", "option of the shell, or meaning"), fields(StreamDeclaration, ()))


def option_of(at: Place) -> str:
    """The option of the shell with the meaning of a field; "" where the shell has none."""
    placed = places().get(at)
    if placed is None or placed.term.declared.in_shell is not True:
        return ""
    turns_on, _, turns_off = placed.term.flag.partition("/")
    return f"`{turns_off if placed.term.default is True else turns_on}`"


def summary_of(thing: object) -> str:
    """The first paragraph of a docstring in one line, without what it raises."""
    words = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()).replace("``", "`")
    return re.sub(r" (Raises|Arguments and errors) .*", "", words)


SUITES: Mapping[str, tuple[str, str]] = {
    "local": ("tests/contract/launch/test_conformance.py", "fast"),
    "ssh": ("tests/ssh/test_ssh_conformance.py", "full"),
    "yarn": ("tests/yarn/test_yarn_conformance.py", "named"),
    "kubernetes": ("tests/kubernetes/test_conformance.py", "named"),
    "emr-serverless": ("tests/emr_live/test_emr_live.py", ""),
    "emr-eks": ("tests/emr_live/test_emr_live.py", ""),
}
"""By launcher the file that runs the suite of the promises, and its tier; "" for one that was never run."""


def table_of_launchers() -> str:
    """Which launcher keeps which promise: by the tests of a tier, or not at all, and why."""
    launchers = Launchers(SYSTEM_CLOCK)
    for name, (file, _tier) in SUITES.items():
        if not (ROOT / file).is_file():
            raise SystemExit(f"the suite of {name} is not there: {file}")

    def exceptions(promise: str) -> str:
        names: dict[str, list[str]] = {}
        for name in SUITES:
            limit = launchers.named(name).limits.get(promise)
            if limit is not None:
                names.setdefault(limit.rstrip("."), []).append(f"`{name}`")
        return "; ".join(f"{', '.join(found)}: {limit}" for limit, found in names.items())

    body = [
        (" ".join((inspect.getdoc(promise) or "").split()).replace("``", "`"), exceptions(promise.__name__))
        for promise in PROMISES
    ]
    tiers = "; ".join(f"`{name}` {tier or 'not run'}" for name, (_file, tier) in SUITES.items())
    return f"Tiers of the tests: {tiers}.\n\n{rows(('promise', 'not kept by'), body)}"


def table_of_reaching() -> str:
    """The options of each launcher whose values the reader of a home has to allow."""
    launchers = Launchers(SYSTEM_CLOCK)
    named = {name: sorted(launchers.reaching_of(name)) for name in SUITES}
    return rows(["launcher", "options"], [[f"`{name}`", list_of(options)] for name, options in named.items()])


def list_of(names: Sequence[str]) -> str:
    """The names as code, between commas."""
    return ", ".join(f"`{name}`" for name in names) or "none"


BUCKET, PREFIX, EXAMPLE = "BUCKET", "streams", "flights"


def s3_policy(allowed: list[str], read: list[str], denied: list[str]) -> str:
    """A policy of AWS for one role, as a block of the page."""

    def arns(keys: list[str]) -> list[str]:
        return [f"arn:aws:s3:::{BUCKET}/{PREFIX}/{key}" for key in keys]

    writes = ["s3:PutObject", "s3:DeleteObject"]
    parts = ["s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    statements = [
        {"Effect": "Allow", "Action": ["s3:GetObject", *writes, *parts], "Resource": arns(allowed)},
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": arns(read)},
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"],
            "Resource": [f"arn:aws:s3:::{BUCKET}"],
        },
        {"Effect": "Deny", "Action": writes, "Resource": arns(denied)},
    ]
    kept = [one for one in statements if one["Resource"]]
    return f"```json\n{json.dumps({'Version': '2012-10-17', 'Statement': kept}, indent=1)}\n```"


def gcs_condition() -> str:
    """The condition of a role's binding on GCS for the drivers of one stream."""
    place = f"projects/_/buckets/{BUCKET}/objects/{PREFIX}/{EXAMPLE}"
    tests = [f'resource.name.startsWith("{place}/{folder}/")' for folder in ("idempotency", "places", "upgrades")]
    tests += [f'resource.name == "{place}/{name}.json"' for name in ("stream", "alerts", "adoption")]
    tests += [f'resource.name.endsWith("/{name}.json")' for name in ("spec", "rehearsal", "handover", "reading")]
    tests += ['resource.name.extract("/launches/{name}") != ""']
    return "```\n" + f'resource.name.startsWith("{place}/") && !(\n  ' + " ||\n  ".join(tests) + "\n)\n```"


def azure_condition() -> str:
    """The condition of a role assignment on Azure for the drivers of one stream."""
    path = "@Resource[Microsoft.Storage/storageAccounts/blobServices/containers/blobs:path]"
    denied = ",\n  ".join(f"'{PREFIX}/{key}'" for key in denied_to_drivers(EXAMPLE))
    return (
        f"```\n{path} StringLike '{PREFIX}/{EXAMPLE}/*'\nAND\n"
        f"{path} ForAllOfAllValues:StringNotLike {{\n  {denied}}}\n```"
    )


TABLES: Mapping[str, Callable[[], str]] = {
    "launchers": table_of_launchers,
    "reaching": table_of_reaching,
    "declarations": table_of_declarations,
    "errors": table_of_errors,
    "events": table_of_events,
    "settings": table_of_settings,
    "client": table_of_client,
    "plan": partial(table_of_fields, model.QueryPlan),
    "states": markdown_table,
    "s3_drivers": partial(s3_policy, [f"{EXAMPLE}/*", "home.feed/*"], ["home.json"], denied_to_drivers(EXAMPLE)),
    "gcs_drivers": gcs_condition,
    "azure_drivers": azure_condition,
}


def refreshed(page: str) -> str:
    """The page with every quote and every table as the code has it now."""
    page = QUOTE.sub(lambda m: m.group(1) + section_of(m["file"], m["section"]) + m.group(5), page)
    return TABLE.sub(lambda m: f"{m.group(1)}{TABLES[m['name']]().strip()}\n{m.group(3)}", page)


def registry() -> str:
    """``provider.yaml``: the description in the form that Airflow's registry of providers reads."""
    head = "# What Airflow's registry of providers reads. Made from provider_info.py by `python docs/refresh.py`.\n"
    about = {**get_provider_info(), "state": "ready", "lifecycle": "incubation", "source-date-epoch": RELEASED_AT}
    return head + yaml.safe_dump(about, sort_keys=False, allow_unicode=True, width=120)


def main() -> int:
    """Rewrite the terms of the operators (``operators.py``), every page and ``provider.yaml``; returns 0."""
    runpy.run_path(str(DOCS / "operators.py"))["main"]()
    REGISTRY.write_text(registry(), encoding="utf-8")
    for page in sorted(DOCS.rglob("*.md")):
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
