"""One declaration of a term: every surface has it, by one name, with one default."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from airflow.providers.common.compat.sdk import DAG

from airflow_streamstate.cli.plan import plan
from airflow_streamstate.cli.upgrade import rescale, restart, rollback, upgrade
from airflow_streamstate.declarations.model import UpgradePart
from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.operators.rescale import RescaleStreamOperator
from airflow_streamstate.operators.rollback import RollbackStreamOperator
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.upgrade import RehearsalTerms, RollbackTerms, UpgradeTerms

ROOT = Path(__file__).resolve().parents[2]
VERBS: list[tuple[click.Command, type, str]] = [
    (upgrade, UpgradeTerms, ""),
    (rescale, UpgradeTerms, "rescale"),
    (restart, UpgradeTerms, "restart"),
    (rollback, RollbackTerms, ""),
    (plan, RehearsalTerms, ""),
]
OPERATORS: list[tuple[Any, type, str]] = [
    (UpgradeStreamOperator, UpgradeTerms, ""),
    (RescaleStreamOperator, UpgradeTerms, "rescale"),
    (DeployStreamOperator, UpgradeTerms, "deploy"),
    (RollbackStreamOperator, RollbackTerms, ""),
    (PlanUpgradeOperator, RehearsalTerms, ""),
]
NOT_COPIED = shutil.ignore_patterns("__pycache__", "assets", "static", "integration-logos")
NEW = """    healthy_lag: int | None = term(
        None,
        help="healthy only when at most this much input is left to read, as {caught_up} for a limit above none",
        heading=_HEALTHY,
        least=0,
    )
"""
ASKED = """
import inspect, json
from click.testing import CliRunner
from airflow_streamstate.cli.main import cli
from airflow_streamstate.declarations.model import StreamDeclaration
from airflow_streamstate.declarations.term_parts import terms_in
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator
from airflow_streamstate.protocol.codec import fields_json, read_fields
from airflow_streamstate.protocol.terms.upgrade import UpgradeTerms

task = UpgradeStreamOperator(task_id="t", stream_id="s", healthy_lag="{{ 7 }}")
task.healthy_lag = "7"
declared = StreamDeclaration.model_validate({"id": "s", "application": "a.py", "upgrade": {"healthy_lag": 7}})
terms = UpgradeTerms(healthy_lag=7)
print(json.dumps({
    "shell": CliRunner().invoke(cli, ["upgrade", "--help-all"]).output,
    "refused": CliRunner().invoke(cli, ["upgrade", "s", "--healthy-lag", "-1"]).output,
    "templated": "healthy_lag" in UpgradeStreamOperator.template_fields,
    "parameter": str(inspect.signature(UpgradeStreamOperator.__init__).parameters["healthy_lag"]),
    "described": inspect.getdoc(UpgradeStreamOperator),
    "rendered": task._request().terms.healthy_lag,
    "file": terms_in(UpgradeTerms, declared.upgrade).healthy_lag,
    "schema": StreamDeclaration.model_json_schema()["$defs"]["UpgradePart"]["properties"]["healthy_lag"],
    "record": read_fields(UpgradeTerms, json.loads(json.dumps(fields_json(terms)))) == terms,
}))
"""


def options_of(command: click.Command) -> dict[str, click.Parameter]:
    return {str(one.name): one for one in command.params}


@pytest.mark.parametrize(("command", "cls", "verb"), VERBS, ids=lambda one: getattr(one, "name", None))
def test_a_verb_has_an_option_for_each_of_its_terms(command: click.Command, cls: type, verb: str) -> None:
    """By the name that it has everywhere, with its unit left out, and with its default."""
    options = options_of(command)
    for one in terms_of(cls, verb):
        found = options[one.name]
        assert isinstance(found, click.Option)
        assert found.opts == [one.flag.partition("/")[0]]
        assert found.default in (one.default, "" if one.kind == "command" else one.default)
        assert (found.help or "").lower().startswith(one.help_for(lambda term: term.flag.partition("/")[0]).lower())


@pytest.mark.parametrize(("operator", "cls", "verb"), OPERATORS, ids=lambda one: getattr(one, "__name__", None))
def test_an_operator_has_a_parameter_for_each_of_its_terms(operator: Any, cls: type, verb: str) -> None:
    """In its signature, which Airflow reads for ``default_args`` and ``partial``, and in its docstring."""
    assert operator.taken == terms_of(cls, verb)
    parameters, text = inspect.signature(operator.__init__).parameters, inspect.getdoc(operator) or ""
    for one in operator.taken:
        assert parameters[one.name].default == one.default
        assert one.name in operator.template_fields
        assert f":param {one.name}: " in text
        if one.choices:
            assert operator.literal_choices[one.name] == one.choices


def test_terms_come_from_default_args_and_by_mapping() -> None:
    """As Airflow fills and expands parameters, which it finds in signatures."""
    with DAG("terms", default_args={"warm_return": True, "strategy": "undo", "owner": "data"}):
        one = UpgradeStreamOperator(task_id="one", stream_id="s")
        back = RollbackStreamOperator(task_id="back", stream_id="s")
        many = UpgradeStreamOperator.partial(task_id="many", stream_id="s", allow_drain=True).expand(
            healthy_batches=[1, 2]
        )
        with pytest.raises(TypeError, match="healthy_batch"):
            UpgradeStreamOperator.partial(task_id="slip", stream_id="s", healthy_batch=1).expand(mode=["auto"])
    assert (one.warm_return, one.warm, back.strategy) == (True, True, "undo")
    assert many.partial_kwargs["allow_drain"] is True


def test_a_file_of_a_stream_has_a_field_for_each_term_of_an_upgrade() -> None:
    """Or the reason why it has none."""
    for one in terms_of(UpgradeTerms):
        if one.declared.file is True:
            assert UpgradePart.model_fields[one.name].default == one.default
        else:
            assert one.declared.file


@pytest.mark.parametrize("cls", [UpgradeTerms, RollbackTerms])
def test_every_field_is_a_term(cls: type) -> None:
    """None is a plain field, which no surface would have; its default is a value that it may have."""
    names = {field.name for field in dataclasses.fields(cls)}
    assert {one.name for one in terms_of(cls)} == names
    assert [one.name for one in terms_of(cls) if one.problem(one.default)] == []


@pytest.mark.parametrize("one", [*terms_of(UpgradeTerms), *terms_of(RollbackTerms)], ids=lambda one: str(one.name))
def test_a_help_text_fits_every_surface(one: Term) -> None:
    """It begins in lower case and ends without a full stop, so that each surface can write it as its own texts."""
    assert one.declared.help[0].islower()
    assert not one.declared.help.endswith(".")


def test_the_source_of_the_operators_is_as_their_terms_are_declared() -> None:
    """``python docs/refresh.py`` writes it."""
    found = runpy.run_path(str(ROOT / "docs" / "operators.py"))["renewed_modules"]()
    assert [path.name for path, source in found.items() if path.read_text() != source] == []


def test_a_new_option_of_upgrade_is_one_field(tmp_path: Path) -> None:
    """In a scratch copy one file is edited by hand; after the command that writes text every surface has it."""
    shutil.copytree(ROOT / "airflow_streamstate", tmp_path / "airflow_streamstate", ignore=NOT_COPIED)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=NOT_COPIED)
    for name in ("dags", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "provider.yaml", tmp_path)
    edited = tmp_path / "airflow_streamstate" / "protocol" / "terms" / "upgrade.py"
    mark = "    roll_back_if_slower: float | None = term(\n"
    assert edited.read_text().count(mark) == 1
    edited.write_text(edited.read_text().replace(mark, NEW + mark))
    by_hand = changed(tmp_path)
    assert by_hand == ["airflow_streamstate/protocol/terms/upgrade.py"]
    run(tmp_path, "docs/refresh.py")
    found = json.loads(run(tmp_path, "-c", ASKED).splitlines()[-1])
    assert "--healthy-lag N" in found["shell"]
    assert "as --caught-up for" in " ".join(found["shell"].split())
    assert "--healthy-lag" in found["refused"]
    assert found["templated"] is True
    assert found["parameter"] == "healthy_lag: 'int | str | None' = None"
    assert ":param healthy_lag: healthy only when at most" in found["described"]
    assert (found["rendered"], found["file"], found["record"]) == (7, 7, True)
    assert found["schema"]["anyOf"] == [{"minimum": 0, "type": "integer"}, {"type": "null"}]
    assert "| `upgrade.healthy_lag` |  | healthy only when" in (tmp_path / "docs" / "how-to" / "files.md").read_text()
    written = set(changed(tmp_path)) - set(by_hand)
    assert written == {"airflow_streamstate/operators/upgrade.py", "docs/how-to/files.md"}


def changed(copy: Path) -> list[str]:
    """The files of the copy that differ from the package's and the docs'."""
    paths = (path for part in ("airflow_streamstate", "docs") for path in sorted((copy / part).rglob("*")))
    names = [path.relative_to(copy) for path in paths if path.suffix in (".py", ".md")]
    return [str(name) for name in names if (copy / name).read_bytes() != (ROOT / name).read_bytes()]


def run(copy: Path, *words: str) -> str:
    """The output of Python in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
