"""What Airflow is told about the provider."""

from __future__ import annotations

import ast
import importlib
import json
from importlib.metadata import version
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from airflow_streamstate import provider_info
from support import airflow_home

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
    problems = {error.message for error in Draft7Validator(schema).iter_errors(INFO)}
    assert problems - NOT_FOR_US == set()


def test_the_package_name_is_that_of_the_distribution() -> None:
    """Another name would stop the discovery of all providers."""
    assert INFO["package-name"] == "airflow-streamstate"
    assert INFO["versions"] == [version("airflow-streamstate")]


def test_the_description_imports_nothing() -> None:
    """Provider discovery runs in every Airflow process, so this module costs nothing."""
    tree = ast.parse(Path(provider_info.__file__).read_text())
    assert [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)] == []


@pytest.mark.parametrize("room", ["hooks", "operators", "sensors", "triggers"])
def test_every_module_that_is_named_is_there(room: str) -> None:
    """Airflow lists these modules without importing them."""
    for entry in INFO[room]:  # type: ignore[attr-defined]
        for module in entry["python-modules"]:
            importlib.import_module(module)
