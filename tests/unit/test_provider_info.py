"""What Airflow learns about the provider."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from airflow.providers_manager import ProvidersManager
from jsonschema import Draft7Validator

import airflow_streamstate
from airflow_streamstate import provider_info
from airflow_streamstate.hooks import configuration
from airflow_streamstate.hooks.airflow_command import get_commands
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator
from support import airflow_home

pytestmark = pytest.mark.fast

INFO = provider_info.get_provider_info()
# Only releases of Airflow's own providers have these two.
NOT_FOR_US = {"'state' is a required property", "'source-date-epoch' is a required property"}


@pytest.mark.parametrize("name", ["provider_info.schema.json", "provider.yaml.schema.json"])
def test_the_description_fits_both_of_airflows_schemas(name: str) -> None:
    """The strict schema of Airflow's own providers finds what discovery passes over in silence."""
    assert airflow_home.HOME
    spec = importlib.util.find_spec("airflow")
    assert spec is not None
    assert spec.origin is not None
    schema = json.loads((Path(spec.origin).parent / name).read_text())
    known_to = {key: INFO[key] for key in INFO if key != "cli" or "cli" in schema["properties"]}  # from 3.2 on
    problems = {error.message for error in Draft7Validator(schema).iter_errors(known_to)}
    assert problems - NOT_FOR_US == set()


def test_the_package_name_is_that_of_the_distribution() -> None:
    """Another name would stop the discovery of all providers."""
    assert INFO["package-name"] == "airflow-streamstate"
    assert INFO["versions"] == [version("airflow-streamstate")]


def test_the_description_imports_nothing_but_the_version() -> None:
    """Provider discovery runs in every Airflow process, so this module costs nothing."""
    tree = ast.parse(Path(provider_info.__file__).read_text())
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports == ["from airflow_streamstate import __version__"]
    root = ast.parse(Path(airflow_streamstate.__file__).read_text())
    assert [node for node in ast.walk(root) if isinstance(node, ast.Import | ast.ImportFrom)] == []


@pytest.mark.parametrize("room", ["hooks", "operators", "sensors", "triggers"])
def test_every_module_that_is_named_is_there(room: str) -> None:
    """Airflow lists these modules without importing them."""
    for entry in INFO[room]:  # type: ignore[attr-defined]
        for module in entry["python-modules"]:
            importlib.import_module(module)


FOR_A_RUN = ("boto3", "botocore", "click", "rich", "yaml", "obstore", "pyspark", "kubernetes", "paramiko")
"""What a task may need when it runs; a DAG file that names an operator needs none of it."""
ROOMS_FOR_A_RUN = (
    "checkpoint",
    "cli",
    "connectors",
    "control",
    "controller",
    "declarations",
    "driver",
    "plan",
    "snapshot",
    "triggers",
)


def test_a_dag_file_with_our_operators_imports_nothing_that_only_a_run_needs() -> None:
    """The scheduler's parser imports operators for every DAG file, every few seconds; a run imports the rest itself."""
    modules = [name for room in ("hooks", "operators", "sensors") for name in modules_of(room)]
    code = (
        "import sys, importlib\n"
        "from airflow.providers.common.compat.sdk import BaseHook, BaseOperator, BaseSensorOperator, Variable, conf\n"
        "before = set(sys.modules)\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        # Of a package that Airflow has imported by itself already, a part more is nothing.
        "new = set(sys.modules) - before\n"
        "ours = 'airflow_streamstate'\n"
        "print(*sorted(name for name in new if name.startswith(ours) or name.partition('.')[0] not in before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    brought = done.stdout.split()
    assert "airflow_streamstate.operators.upgrade" in brought
    rooms = tuple(f"airflow_streamstate.{room}" for room in ROOMS_FOR_A_RUN)
    assert [name for name in brought if f"{name}.".startswith(tuple(f"{each}." for each in (*FOR_A_RUN, *rooms)))] == []


def modules_of(room: str) -> list[str]:
    """The modules that the description names under this key."""
    return [module for entry in INFO[room] for module in entry["python-modules"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", INFO["extra-links"])  # type: ignore[arg-type]
def test_every_link_that_is_named_is_on_our_operators(path: str) -> None:
    """Naming a link only registers it; the operator has to have it, and Airflow reads it by its own XCom."""
    module, _, name = path.rpartition(".")
    link = getattr(importlib.import_module(module), name)()
    assert link in UpgradeStreamOperator.operator_extra_links
    assert link.xcom_key == f"_link_{name}"


def test_airflow_takes_links_commands_and_options() -> None:
    """By the real manager of providers, whose checks only log what is wrong."""
    manager = ProvidersManager()
    assert set(INFO["extra-links"]) <= set(manager.extra_links_class_names)  # type: ignore[call-overload]
    if hasattr(manager, "cli_command_functions"):  # from 3.2 on
        assert get_commands in manager.cli_command_functions
    assert "streamstate" in {section for _, sections in manager.provider_configs for section in sections}


@pytest.mark.parametrize(
    ("option", "read"),
    [
        ("poll_interval_seconds", configuration.poll_interval_seconds),
        ("poke_interval_seconds", configuration.poke_interval_seconds),
        ("trigger_threads", configuration.trigger_threads),
        ("restart_in_triggerer", configuration.restart_in_triggerer),
        ("page_conn_ids", lambda: ",".join(configuration.page_conn_ids())),
        ("page_dag_ids", lambda: ",".join("=".join(each) for each in configuration.page_dag_ids().items())),
    ],
)
def test_the_options_that_are_described_are_those_that_are_read(
    option: str, read: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the described default, in what Airflow reports and in what the code falls back to."""
    described = INFO["config"]["streamstate"]["options"]  # type: ignore[index]
    kind = type(read())
    meant = {bool: lambda text: text == "True"}.get(kind, kind)
    assert read() == meant(described[option]["default"])
    monkeypatch.setenv(f"AIRFLOW__STREAMSTATE__{option.upper()}", described[option]["example"])
    assert read() == meant(described[option]["example"])
    assert set(described) == {
        "poll_interval_seconds", "poke_interval_seconds", "trigger_threads", "restart_in_triggerer", "page_conn_ids",
        "page_dag_ids",
    }  # fmt: skip


def test_the_guides_and_the_logo_are_there() -> None:
    """In the docs, and the logo in the wheel, too."""
    (integration,) = INFO["integrations"]  # type: ignore[misc]
    root = Path(__file__).parents[2]
    assert [page for page in integration["how-to-guide"] if not (root / page.lstrip("/")).is_file()] == []
    package = Path(provider_info.__file__).parent
    shipped = (package / integration["logo"].lstrip("/")).read_text()
    assert shipped == (root / "docs" / "assets" / "streamstate.svg").read_text()
