"""Write ``docs/reference/providers.md`` anew: ``python docs/providers.py``. A test fails when the page is stale.

The column of this package is counted from its source; so were the others, from the wheels of the versions that
``docs/providers.json`` names. ``python docs/providers.py --measure FOLDER`` counts them again, where each folder
``FOLDER/<distribution>`` has one wheel unpacked (``pip install --no-deps --target``). No package is imported: its
source is parsed, and only the function that returns its metadata is run.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
FACTS = DOCS / "providers.json"
PAGE = DOCS / "reference" / "providers.md"
OURS = "airflow-streamstate"
OTHERS: Mapping[str, tuple[str, str]] = {
    "apache-airflow-providers-databricks": ("databricks", "airflow/providers/databricks"),
    "apache-airflow-providers-google": ("google", "airflow/providers/google"),
    "apache-airflow-providers-amazon": ("amazon", "airflow/providers/amazon"),
    "apache-airflow-providers-cncf-kubernetes": ("cncf.kubernetes", "airflow/providers/cncf/kubernetes"),
    "astronomer-cosmos": ("cosmos", "cosmos"),
}
"""By distribution the name of its column and its package."""
HEAD = """# Features beside other providers

Written by `python docs/providers.py`. Each number is counted in the source of a package, by the same rules for every
column; no package is imported. A dash is nothing found. Numbers say what is there, not how good it is: google and
amazon each cover dozens of services, this package covers one. *Not counted*: no rule for it holds for every package.
The versions were the newest on {measured_on}:

{versions}

| feature | this package | {names} | shown by |
|---|---|{rules}---|
"""
TAIL = """
## What others have and this package lacks

| what | provider |
|---|---|
{lacks}
Most of these have no counterpart for a stream; why there is no task decorator is said [here](airflow.md).

## How it is counted

- *Operators and sensors* are the public classes of the packages `operators` and `sensors` with such a name, base
  classes included. A class has what a class of the same package that it extends has.
- *Goes on with the same remote work*: the class extends Airflow's `ResumableJobMixin`, or has a parameter whose name
  begins with `reattach` or is `durable`. Operators of this package have neither: the request of a task has one id in
  all its tries, and the home knows it.
- *Links*, *schemes*, *options* and the like are those of the provider's metadata.
- *Shown by* names the test and its [tier](../project/contributing.md#tiers); a test of the structure fails where it
  is not there.
"""


@dataclass(frozen=True)
class Class:
    """One class of a package, as its source says."""

    name: str
    module: str
    bases: tuple[str, ...]
    parameters: frozenset[str]
    members: frozenset[str]


@dataclass
class Package:
    """The source of one package.

    Attributes:
        info: its metadata as a provider.
        classes: by name; of two of the same name the last.
    """

    info: Mapping[str, Any]
    classes: dict[str, Class] = field(default_factory=dict)
    text: str = ""

    def all_of(self, one: Class, get: Callable[[Class], frozenset[str]]) -> set[str]:
        """What the class and those that it extends have."""
        found, seen, left = set[str](), set[str](), [one.name]
        while left:
            name = left.pop()
            known = self.classes.get(name)
            if known is not None and name not in seen:
                seen.add(name)
                found |= get(known)
                left.extend(known.bases)
        return found

    def extending(self, *ends: str) -> list[Class]:
        """The classes one of whose ancestors has a name that ends so."""
        return [
            one
            for one in self.classes.values()
            if any(base.endswith(ends) for base in self.all_of(one, lambda each: frozenset(each.bases)))
        ]

    @property
    def operators(self) -> list[Class]:
        """Operators and sensors."""
        return [
            one
            for one in self.classes.values()
            if {"operators", "sensors"} & set(one.module.split("/"))
            and one.name.endswith(("Operator", "Sensor"))
            and not one.name.startswith("_")
        ]

    def with_parameter(self, pattern: str) -> list[Class]:
        """The operators and sensors with such a parameter."""
        known = re.compile(pattern)
        return [one for one in self.operators if any(map(known.fullmatch, self.all_of(one, lambda x: x.parameters)))]

    def with_member(self, classes: list[Class], pattern: str) -> list[Class]:
        """Those of the classes that have such a member."""
        known = re.compile(pattern)
        return [one for one in classes if any(map(known.fullmatch, self.all_of(one, lambda x: x.members)))]

    def keys(self, name: str) -> list[Any]:
        """The entries of a key of the metadata."""
        return list(self.info.get(name) or ())


def package_of(folder: Path, info: Mapping[str, Any]) -> Package:
    """The package in this folder."""
    found, texts = Package(info), list[str]()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        texts.append(text)
        for one in _classes(ast.parse(text), path.relative_to(folder).as_posix()):
            found.classes[one.name] = one
    found.text = "\n".join(texts)
    return found


def _classes(tree: ast.Module, module: str) -> Iterator[Class]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
        init = methods.get("__init__")
        parameters = () if init is None else (*init.args.args, *init.args.kwonlyargs)
        targets = [
            target
            for one in node.body
            if isinstance(one, ast.Assign | ast.AnnAssign)
            for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
        ]
        yield Class(
            node.name,
            module,
            tuple(_name(base) for base in node.bases),
            frozenset(one.arg for one in parameters),
            frozenset((*methods, *(one.id for one in targets if isinstance(one, ast.Name)))),
        )


def _name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def _of(part: list[Class], whole: list[Class]) -> str:
    return f"{len(part)} of {len(whole)}" if part else ""


def _count(found: int) -> str:
    return str(found) if found else ""


def _schemes(package: Package) -> str:
    return ", ".join(f"`{scheme}`" for one in package.keys("asset-uris") for scheme in one["schemes"])


def _options(package: Package) -> str:
    return _count(sum(len(section["options"]) for section in package.info.get("config", {}).values()))


def _connection_fields(package: Package) -> str:
    kinds = package.keys("connection-types")
    described = [one for one in kinds if one.get("conn-fields")]
    return f"{len(kinds)}, {len(described)} with fields" if kinds else ""


def _triggers(package: Package) -> list[Class]:
    return package.extending("BaseTrigger", "BaseEventTrigger")


def _hooks(package: Package) -> list[Class]:
    return [one for one in package.classes.values() if one.name.endswith("Hook") and not one.name.startswith("_")]


def _guides(package: Package) -> str:
    found = package.keys("integrations")
    guides = sum(len(one.get("how-to-guide", ())) for one in found)
    return f"{guides}, {sum('logo' in one for one in found)}" if guides else ""


def _keys(package: Package) -> str:
    named = {"package-name", "name", "description", "versions"}
    return _count(sum(bool(value) for key, value in package.info.items() if key not in named))


def _said(pattern: str) -> Callable[[Package], str]:
    known = re.compile(pattern)
    return lambda package: _count(len(known.findall(package.text)))


@dataclass(frozen=True)
class Row:
    """One feature.

    Attributes:
        count: of a package; "" for nothing found. None: it is not counted.
        tests: what shows it, as ``folder/file.py::test`` below ``tests``.
        ours: what this package has, where the rule finds only what others call so.
    """

    feature: str
    count: Callable[[Package], str] | None
    tests: tuple[str, ...]
    ours: str = ""


ROWS = (
    Row("keys of the provider's metadata", _keys,
        ("unit/test_provider_info.py::test_the_description_fits_both_of_airflows_schemas",)),
    Row("operators and sensors that can be deferred",
        lambda one: _of(one.with_parameter("deferrable"), one.operators),
        ("unit/operators/test_base.py::test_an_event_ends_the_task_as_the_wait_in_a_worker_would",
         "airflow/test_components_ends.py::test_a_triggerer_that_ends_stops_no_stream_and_forgets_no_wait")),
    Row("goes on with the same remote work after a worker's death",
        lambda one: _of(_resumable(one), one.operators),
        ("unit/operators/test_deploy.py::test_a_retry_finds_the_deployment_that_it_began",
         "unit/operators/test_base.py::test_the_request_is_the_same_for_every_try"),
        "each that changes a stream"),
    Row("operators and sensors with `on_kill`",
        lambda one: _of(one.with_member(one.operators, "on_kill"), one.operators),
        ("unit/hooks/test_ending.py::test_what_was_asked_for_is_ordered",)),
    Row("triggers with `on_kill`: a user ends a deferred task (Airflow 3.3)",
        lambda one: _of(one.with_member(_triggers(one), "on_kill"), _triggers(one)),
        ("unit/triggers/test_streamstate.py::test_what_was_asked_for_happens_when_a_user_ends_the_task",)),
    Row("links beside a task", lambda one: _count(len(one.keys("extra-links"))),
        ("unit/operators/test_links.py::test_a_task_that_waits_shows_its_links_and_ids",
         "unit/test_provider_info.py::test_every_link_that_is_named_is_on_our_operators")),
    Row("links and ids of a task that still runs, or is deferred", None,
        ("unit/operators/test_links.py::test_a_task_that_waits_shows_its_links_and_ids",), "8 operators"),
    Row("a line in the log of a deferred task for each change", None,
        ("unit/triggers/test_streamstate.py::test_a_wait_writes_a_line_for_each_change_and_none_for_a_look",), "yes"),
    Row("one poller for all deferred tasks of a home", None,
        ("unit/triggers/test_watcher.py::test_many_waits_share_the_looks",), "yes"),
    Row("asset URI schemes", _schemes,
        ("unit/test_assets.py::test_a_stream_is_one_asset_however_its_uri_is_written",)),
    Row("event triggers for `AssetWatcher`", lambda one: _count(len(one.extending("BaseEventTrigger"))),
        ("unit/triggers/test_stream_events.py::test_what_happens_becomes_events_in_order",
         "airflow/test_stream_events.py::test_a_driver_that_is_killed_starts_a_dag_though_no_task_asks")),
    Row("partitions of an asset, emitted when their data is complete", _said(r"add_partitions\("),
        ("unit/operators/test_complete.py::test_each_hour_is_emitted_once",
         "airflow/test_components_complete_hours.py::"
         "test_each_hour_is_one_partition_and_one_run_through_restart_upgrade_and_drain")),
    Row("message queues", lambda one: _count(len(one.keys("queues"))), ()),
    Row("notifiers", lambda one: _count(len(one.keys("notifications"))),
        ("airflow/test_dag_runs_alerts.py::test_two_runs_tell_a_failure_once",
         "unit/alerts/test_watch.py::test_a_watch_that_is_killed_while_it_tells_loses_no_alert")),
    Row("metrics in Airflow's own: calls", _said(r"(?:\bStats|_stats\(\))\.(?:incr|gauge|timing|timer)\("),
        ("unit/hooks/test_stats.py::test_airflows_own_functions_take_what_is_sent",)),
    Row("options of Airflow's configuration", _options,
        ("unit/test_provider_info.py::test_the_options_that_are_described_are_those_that_are_read",)),
    Row("commands of `airflow`", lambda one: _count(len(one.keys("cli"))),
        ("airflow/test_provider.py::test_the_command_of_airflow_has_the_credentials_of_the_connection",)),
    Row("plugins: pages or links in Airflow's interface", lambda one: _count(len(one.extending("AirflowPlugin"))),
        ("unit/page/test_plugin.py::test_each_view_and_app_is_one_that_airflow_shows",
         "airflow/test_page.py::test_the_page_is_a_view_of_airflows")),
    Row("operators and sensors that tell OpenLineage",
        lambda one: _of(one.with_member(one.operators, "get_openlineage_facets_on_.*"), one.operators),
        ("airflow/test_openlineage.py::test_airflows_provider_takes_what_an_operator_tells",
         "airflow/test_openlineage.py::test_the_events_arrive_by_http_and_say_the_same_each_time")),
    Row("listeners of runs and tasks", _said(r"@hookimpl\b"), ()),
    Row("a DAG or task group made of a definition", lambda one: _count(len(one.extending("DAG", "TaskGroup"))),
        ("airflow/test_streams_dag.py::test_a_folder_is_one_dag_or_one_for_each_file",)),
    Row("waves, and a canary first: parameters so named", _said(r"\bcanary: "),
        ("unit/cli/test_declared.py::test_a_canary_that_fails_keeps_all_others_as_they_are",
         "airflow/test_dag_runs_declared.py::test_a_folder_is_made_so_wave_by_wave"), "`StreamsDag`, `apply`"),
    Row("a person approves: uses of Airflow's human in the loop", _said(r"\b(?:HITL|Approval)Operator\b"),
        ("airflow/test_streams_dag.py::test_a_person_reads_each_difference_and_verdict",)),
    Row("hooks that test a connection", lambda one: _of(one.with_member(_hooks(one), "test_connection"), _hooks(one)),
        ("airflow/test_provider.py::test_the_test_button_really_writes_with_a_condition_and_cleans_up",)),
    Row("connection types", _connection_fields,
        ("airflow/test_components_ends.py::test_the_form_of_the_connection_has_every_field_and_a_button_that_works",
         "unit/hooks/test_connection.py::test_each_field_of_the_form_is_read_and_reaches_the_options",
         "airflow/test_connection_homes.py::test_a_role_on_s3",
         "airflow/test_connection_homes.py::test_gcs",
         "airflow/test_connection_homes.py::test_azure")),
    Row("operators and sensors with `template_fields_renderers`",
        lambda one: _of(one.with_member(one.operators, "template_fields_renderers"), one.operators),
        ("unit/operators/test_base.py::test_lists_and_mappings_are_shown_as_what_they_are",)),
    Row("secrets are masked: calls of `mask_secret`", _said(r"\bmask_secret\("),
        ("unit/operators/test_masking.py::test_a_secret_is_hidden_from_the_moment_its_field_is_rendered",
         "unit/page/test_app.py::test_secrets_are_in_no_part")),
    Row("guides and logos in the metadata", _guides,
        ("unit/test_provider_info.py::test_the_guides_and_the_logo_are_there",)),
)  # fmt: skip
LACKS: Mapping[str, str] = {
    "transfers": "transfers between systems",
    "task-decorators": "task decorators",
    "secrets-backends": "secrets backends",
    "remote-logging": "remote logs",
    "executors": "executors",
    "auth-managers": "auth managers",
    "auth-backends": "authentication backends",
    "bundles": "DAG bundles",
    "filesystems": "file systems",
    "email-backends": "email backends",
    "queues": "message queues",
    "listeners": "listeners of runs and tasks",
}
"""What this package leaves out, by its key in the metadata; a listener has none there."""


def _resumable(package: Package) -> list[Class]:
    resumable = {one.name for one in package.extending("ResumableJobMixin")}
    named = {one.name for one in package.with_parameter("reattach.*|durable")}
    return [one for one in package.operators if one.name in resumable | named]


def measured(folder: Path) -> dict[str, Any]:
    """The facts of the other packages, each unpacked in a folder below this one."""
    found: dict[str, Any] = {"measured_on": SYSTEM_CLOCK.now().date().isoformat(), "packages": {}}
    for distribution, (_, room) in OTHERS.items():
        place = folder / distribution
        package = package_of(place / room, _info(place / room))
        (metadata,) = place.glob("*.dist-info/METADATA")
        version = next(line for line in metadata.read_text().splitlines() if line.startswith("Version: "))
        found["packages"][distribution] = {
            "version": version.removeprefix("Version: "),
            "counts": {row.feature: row.count(package) for row in ROWS if row.count},
            "kinds": {key: len(package.keys(key)) for key in LACKS if package.keys(key)},
        }
    return found


def _info(room: Path) -> Mapping[str, Any]:
    """What the package tells Airflow of itself."""
    for name in ("get_provider_info.py", "provider_info.py"):
        path = room / name
        if path.is_file():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            (made,) = [one for one in tree.body if getattr(one, "name", "") == "get_provider_info"]
            namespace: dict[str, Any] = {"__version__": "", "Any": Any}
            # The function alone: the module of one of them imports its package.
            exec(compile(ast.Module([made], []), str(path), "exec"), namespace)  # noqa: S102
            info: Mapping[str, Any] = namespace["get_provider_info"]()
            return info
    raise SystemExit(f"{room} has no metadata of a provider")


@cache
def our_package() -> Package:
    """This package, as its source is now."""
    room = ROOT / "airflow_streamstate"
    return package_of(room, runpy.run_path(str(room / "provider_info.py"))["get_provider_info"]())


def named_tests() -> set[str]:
    """Every test that a row names."""
    return {test for row in ROWS for test in row.tests} | set(re.findall(r"[\w/]+\.py::\w+", TAIL))


def page() -> str:
    """The page as it should be. Raises SystemExit for a test that is not there."""
    tiers = runpy.run_path(str(DOCS / "laws.py"))["tiers_by_test"]()
    if gone := sorted(named_tests() - set(tiers)):
        raise SystemExit(f"docs/providers.py names what is not there: {', '.join(gone)}")
    facts, ours = json.loads(FACTS.read_text(encoding="utf-8")), our_package()
    packages = facts["packages"]
    rows = []
    for row in ROWS:
        counted = row.count(ours) if row.count else ""
        others = (packages[name]["counts"].get(row.feature, "not counted") for name in OTHERS)
        cells = [row.ours or counted, *others]
        shown = "<br>".join(f"`{test}` ({'/'.join(sorted(tiers[test]))})" for test in row.tests)
        rows.append(f"| {row.feature} | {' | '.join(cell or '-' for cell in cells)} | {shown or '-'} |\n")
    lacks = []
    for key, words in LACKS.items():
        having = [f"{OTHERS[name][0]} ({one['kinds'][key]})" for name, one in packages.items() if key in one["kinds"]]
        if key == "listeners":
            having = [OTHERS[name][0] for name, one in packages.items() if one["counts"]["listeners of runs and tasks"]]
        lacks.append(f"| {words} | {', '.join(having)} |\n")
    versions = "\n".join(f"- `{name}` {packages[name]['version']}" for name in OTHERS)
    head = HEAD.format(
        measured_on=facts["measured_on"],
        versions=versions,
        names=" | ".join(name for name, _ in OTHERS.values()),
        rules="---|" * len(OTHERS),
    )
    return head + "".join(rows) + TAIL.format(lacks="".join(lacks))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        FACTS.write_text(f"{json.dumps(measured(Path(sys.argv[2])), indent=1, ensure_ascii=False)}\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
