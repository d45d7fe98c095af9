"""One declaration of a term: every surface has it, by one name, with one default."""

from __future__ import annotations

import dataclasses
import inspect
import json
import runpy
from pathlib import Path
from typing import Any

import click
import pytest
from airflow.providers.common.compat.sdk import DAG

from airflow_streamstate.cli.declared import apply, validate
from airflow_streamstate.cli.declared import diff as files_diff
from airflow_streamstate.cli.doctor import doctor
from airflow_streamstate.cli.look import events, logs, status
from airflow_streamstate.cli.orders import cancel, drain, skip, stop
from airflow_streamstate.cli.replay import replay
from airflow_streamstate.cli.snapshots import create, mirror, prune, restore, retention, retire, verify
from airflow_streamstate.cli.start import adopt, deploy, resume
from airflow_streamstate.cli.state import diff as state_diff
from airflow_streamstate.cli.state import export as export_state
from airflow_streamstate.cli.state import inspect as inspect_
from airflow_streamstate.cli.upgrade import plan, rescale, restart, rollback, upgrade
from airflow_streamstate.cli.watch import policy
from airflow_streamstate.declarations.stream_file import UpgradePart
from airflow_streamstate.operators.base import default_of, fields_of, kept, names_of
from airflow_streamstate.operators.declared import ApplyStreamsOperator, CompareStreamsOperator, StreamFilesOperator
from airflow_streamstate.operators.deploy import DeployStreamOperator, ResumeStreamOperator
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.operators.snapshot import (
    ExportStateOperator,
    MirrorSnapshotsOperator,
    PruneSnapshotsOperator,
    SnapshotStreamOperator,
    VerifySnapshotOperator,
)
from airflow_streamstate.operators.stop import (
    DrainStreamOperator,
    RetireStreamOperator,
    SkipBatchOperator,
    StopStreamOperator,
)
from airflow_streamstate.operators.upgrade import (
    RescaleStreamOperator,
    RollbackStreamOperator,
    UpgradeOperatorBase,
    UpgradeStreamOperator,
)
from airflow_streamstate.protocol.policies import AlertRules, RestartPolicy, RetentionPolicy
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.declaration import WORDS, Term, terms_of
from airflow_streamstate.protocol.terms.order import (
    BusyTerms,
    CompareTerms,
    DeploymentChoice,
    DrainTerms,
    Expiry,
    ExportTerms,
    FileTerms,
    MirrorTerms,
    PlanTerms,
    PruneTerms,
    ReaderTerms,
    ReadingTerms,
    RehearsalTerms,
    RetireTerms,
    RollbackTerms,
    SkipTerms,
    SnapshotTerms,
    StopTerms,
    UpgradeTerms,
    VerifyTerms,
    WaveTerms,
)
from airflow_streamstate.protocol.terms.version import (
    CodeTerms,
    HandoverTerms,
    LauncherChoice,
    StartTerms,
    StreamTerms,
    Version,
)
from support.scratch_copy import ScratchCopy
from support.shell import VERBS as ALL_VERBS
from support.shell import command_of
from support.surfaces import airflow_classes

ROOT = Path(__file__).resolve().parents[2]
VERBS: list[tuple[click.Command, type, str]] = [
    (upgrade, UpgradeTerms, ""),
    (rescale, UpgradeTerms, "rescale"),
    (restart, UpgradeTerms, "restart"),
    (rollback, RollbackTerms, ""),
    (plan, RehearsalTerms, ""),
    (deploy, Version, ""),
    (deploy, StartTerms, ""),
    (deploy, StreamTerms, ""),
    (adopt, Version, "adopt"),
    (adopt, HandoverTerms, "adopt"),
    *((verb, cls, of) for verb in (plan, upgrade)
      for cls, of in ((Version, "change"), (HandoverTerms, "change"), (StateRewrite, ""))),
    (upgrade, RestartPolicy, "upgrade"),
    (rescale, StateRewrite, "rescale"),
    (resume, RestartPolicy, ""),
    (resume, StartTerms, "resume"),
    (skip, StartTerms, "skip"),
    (policy, RestartPolicy, ""),
    (retention, RetentionPolicy, ""),
    (prune, RetentionPolicy, ""),
    (replay, Version, "replay"),
    *((verb, CodeTerms, "") for verb in (deploy, adopt, plan, upgrade, replay)),
    (doctor, LauncherChoice, ""),
    *((verb, AgentSettings, "mirror") for verb in (mirror, restore)),
    *((verb, BusyTerms, "") for verb in (upgrade, rescale, restart, rollback)),
    *((verb, DeploymentChoice, "") for verb in (stop, drain, cancel, replay, status, events, logs)),
    *((verb, Expiry, "") for verb in (stop, drain, cancel, create)),
    (stop, StopTerms, ""),
    (drain, DrainTerms, ""),
    (create, SnapshotTerms, ""),
    (skip, SkipTerms, ""),
    (plan, PlanTerms, ""),
    (retire, RetireTerms, ""),
    (prune, PruneTerms, ""),
    (mirror, MirrorTerms, ""),
    *((verb, FileTerms, "") for verb in (validate, files_diff, apply, deploy)),
    (files_diff, CompareTerms, ""),
    (apply, WaveTerms, ""),
    (inspect_, ReadingTerms, ""),
    (export_state, ReadingTerms, ""),
    (export_state, ExportTerms, ""),
    (state_diff, ReadingTerms, "diff"),
    (verify, ReaderTerms, ""),
    (verify, VerifyTerms, ""),
]  # fmt: skip
TYPED_BY_HAND = {
    "alerts": {"off"},  # in addition to those that are off
    "home doctor": {"master"},  # what is checked
    "home restore": {"accept_duplicates"},  # of rows after the newest snapshot of a mirror
    "replay": {"master", "batch_id", "query_name", "out", "fail_on_changed_rows", "deadline_seconds"},  # of this run
    "adopt": {"deadline_seconds"},  # until the barrier
}
"""By verb: options that have the name and the flag of a term, and mean another thing; no operator has them."""
ORDER_TERMS = (
    BusyTerms, DeploymentChoice, Expiry, StopTerms, DrainTerms, SnapshotTerms, SkipTerms, PlanTerms, FileTerms,
    CompareTerms, WaveTerms, PruneTerms, RetireTerms, MirrorTerms, ReadingTerms, ExportTerms, VerifyTerms,
)  # fmt: skip
CHANGE = [(Version, "change"), (HandoverTerms, ""), (CodeTerms, ""), (StateRewrite, "")]
OPERATORS: list[tuple[Any, list[tuple[type, str]]]] = [
    (
        DeployStreamOperator,
        [(Version, ""), (StartTerms, ""), (StreamTerms, ""), (CodeTerms, ""), (UpgradeTerms, "deploy")],
    ),
    (UpgradeStreamOperator, [*CHANGE, (UpgradeTerms, "")]),
    (PlanUpgradeOperator, [*CHANGE, (RehearsalTerms, ""), (PlanTerms, "")]),
    (UpgradeOperatorBase, [(BusyTerms, "")]),
    (RescaleStreamOperator, [(StateRewrite, "rescale"), (UpgradeTerms, "rescale")]),
    (RollbackStreamOperator, [(RollbackTerms, "")]),
    (ResumeStreamOperator, [(StartTerms, "resume")]),
    (SkipBatchOperator, [(SkipTerms, ""), (StartTerms, "skip")]),
    (PruneSnapshotsOperator, [(RetentionPolicy, ""), (PruneTerms, "")]),
    (MirrorSnapshotsOperator, [(MirrorTerms, ""), (AgentSettings, "mirror")]),
    (StreamFilesOperator, [(FileTerms, "")]),
    (CompareStreamsOperator, [(CompareTerms, ""), (WaveTerms, "compare")]),
    (ApplyStreamsOperator, [(WaveTerms, "apply")]),
    (StopStreamOperator, [(DeploymentChoice, ""), (StopTerms, ""), (Expiry, "")]),
    (DrainStreamOperator, [(DeploymentChoice, ""), (DrainTerms, ""), (Expiry, "")]),
    (SnapshotStreamOperator, [(SnapshotTerms, ""), (Expiry, "")]),
    (RetireStreamOperator, [(RetireTerms, "")]),
    (ExportStateOperator, [(ExportTerms, ""), (ReadingTerms, "")]),
    (VerifySnapshotOperator, [(ReadingTerms, "verify"), (VerifyTerms, "")]),
]
BY_HAND = {
    "ApplyStreamsOperator": {"wave"},  # the wave itself
    "CompletePartitionsOperator": {"query_name"},  # whose partitions are complete
    "CompletePartitionSensor": {"query_name"},
    "PinSnapshotOperator": {"snapshot_id"},  # the snapshot that it is about
    "SnapshotReadySensor": {"snapshot_id"},
    "StreamStateSensor": {"deployment_id"},  # by default the current one when the DAG run started
    "StreamHealthSensor": {"caught_up"},  # what it waits for
    "ReadingOperator": {"deadline_seconds"},  # of its subclasses
}
"""Parameters that have the name of a term, and mean another thing."""
TERMS = "airflow_streamstate/protocol/terms"
NEW = """    healthy_restarts: int | None = term(
        None,
        help="healthy only when at most this many restarts came before, as {caught_up} for input",
        heading=_HEALTHY,
        least=0,
    )
"""
ASKED = """
import inspect, json
from click.testing import CliRunner
from airflow_streamstate.cli.main import cli
from airflow_streamstate.declarations.stream_file import StreamDeclaration
from airflow_streamstate.declarations.stream_file import values_in
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator
from airflow_streamstate.protocol.codec import fields_json, read_fields
from airflow_streamstate.protocol.terms.order import UpgradeTerms

task = UpgradeStreamOperator(task_id="t", stream_id="s", healthy_restarts="{{ 7 }}")
task.healthy_restarts = "7"
declared = StreamDeclaration.model_validate({"id": "s", "application": "a.py", "upgrade": {"healthy_restarts": 7}})
terms = UpgradeTerms(healthy_restarts=7)
print(json.dumps({
    "shell": CliRunner().invoke(cli, ["upgrade", "--help-all"]).output,
    "refused": CliRunner().invoke(cli, ["upgrade", "s", "--healthy-restarts", "-1"]).output,
    "templated": "healthy_restarts" in UpgradeStreamOperator.template_fields,
    "parameter": str(inspect.signature(UpgradeStreamOperator.__init__).parameters["healthy_restarts"]),
    "described": inspect.getdoc(UpgradeStreamOperator),
    "rendered": task._request().terms.healthy_restarts,
    "file": values_in(UpgradeTerms, declared)["healthy_restarts"],
    "schema": StreamDeclaration.model_json_schema()["$defs"]["UpgradePart"]["properties"]["healthy_restarts"],
    "record": read_fields(UpgradeTerms, json.loads(json.dumps(fields_json(terms)))) == terms,
}))
"""
OF_VERSION = """    nice_level: int | None = term(
        None, help="how far other processes of the machine come first", least=0, most=19, heading=_CODE, changes="code"
    )
"""
ASKED_OF_VERSION = """
import json, runpy, sys
from pathlib import Path
from airflow_streamstate.declarations.diff import differences
from airflow_streamstate.declarations.export import version_fields
from airflow_streamstate.declarations.stream_file import StreamDeclaration
from airflow_streamstate.declarations.reader import read_stream
from airflow_streamstate.declarations.reader import deploy_request
from airflow_streamstate.protocol.codec import fields_json, read_fields
from airflow_streamstate.protocol.terms.version import Version

folder = Path(sys.argv[1])
def version(more):
    path = folder / "s.yaml"
    path.write_text("id: s\\napplication: job.py\\n" + more)
    read = read_stream(path)
    return str(read[0]) if isinstance(read, list) else deploy_request(read, str(folder)).version
(folder / "job.py").write_text("x = 1\\n")
before, after = version(""), version("nice_level: 7\\n")
print(json.dumps({
    "asked": after.nice_level,
    "refused": version("nice_level: 20\\n"),
    "schema": StreamDeclaration.model_json_schema()["properties"]["nice_level"],
    "differences": [vars(one) for one in differences(before, after)],
    "exported": version_fields(after, str(folder), folder / "s")[0].get("nice_level"),
    "not_exported": "nice_level" in version_fields(before, str(folder), folder / "s")[0],
    "digests": before.code_digest != after.code_digest,
    "record": read_fields(Version, json.loads(json.dumps(fields_json(after)))) == after,
    "docs": runpy.run_path("docs/refresh.py")["table_of_declarations"](),
}))
"""

IN_THE_SHELL = """    nice_level: int | None = term(
        None, help="how far other processes of the machine come first", least=0, most=19, heading=_CODE,
        verbs=_OF_A_CHANGE, changes="code",
    )
"""
ASKED_OF_THE_SHELL = """
import json
from click.testing import CliRunner
from airflow_streamstate.cli.start import names_anything, version_given
from airflow_streamstate.cli.main import cli
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.protocol.terms.version import command_line
from airflow_streamstate.protocol.terms.version import Artifact, Version

verbs = ("deploy", "upgrade", "adopt")
def given(verb, *words):
    command = cli.get_command(cli.make_context("streamstate", [verb]), verb)
    return command.make_context(verb, ["s", *words], obj=ShellSession()).params
script = Artifact("job.py", "0" * 64)
print(json.dumps({
    "help": {verb: CliRunner().invoke(cli, [verb, "--help-all"]).output for verb in verbs},
    "refused": {verb: CliRunner().invoke(cli, [verb, "s", "--nice-level", "-1"]).output for verb in verbs},
    "given": {verb: version_given(given(verb, "--nice-level", "7"))["nice_level"] for verb in verbs},
    "names_a_change": [names_anything(given("plan", *words)) for words in (["--nice-level", "7"], [])],
    "command_line": command_line(Version(script, nice_level=7), Version(script), "adopt").options,
}))
"""


def options_of(command: click.Command) -> dict[str, click.Parameter]:
    return {str(one.name): one for one in command.params}


def shell_terms(cls: type, verb: str = "") -> list[Term]:
    """The terms that have an option; in place of a part those of its class, and itself for the others of them."""
    found = []
    for one in terms_of(cls, verb):
        if one.kind != "part":
            found += [one] if one.declared.in_shell is True or verb == "mirror" else []
        elif one.declared.in_shell is True:
            found += [*shell_terms(one.part), *([one] if one.declared.flag else [])]
    return found


@pytest.mark.parametrize(("command", "cls", "verb"), VERBS, ids=lambda one: getattr(one, "name", None))
def test_a_verb_has_an_option_for_each_of_its_terms(command: click.Command, cls: type, verb: str) -> None:
    """By the name that it has everywhere, with its unit left out, and with its default, or none where it stays."""
    options = options_of(command)
    for one in shell_terms(cls, verb):
        found = options[one.name_on("shell")]
        if one.flag == WORDS:
            assert isinstance(found, click.Argument)
            continue
        assert isinstance(found, click.Option)
        assert [*found.opts, *found.secondary_opts] == one.flag.split("/")
        assert found.required or found.default in (one.default, None)
        text = one.help_for(lambda term: term.flag.partition("/")[0]).partition(". By default ")[0]
        assert (found.help or "").lower().startswith(text.lower())


def test_no_option_of_the_shell_is_typed_by_hand() -> None:
    """Each option with the name and the flag of a term is made from its declaration, or means another thing."""
    classes = {cls for _, cls, _ in VERBS} | {AlertRules}
    known = {(one.name_on("shell"), one.flag.partition("/")[0]) for cls in classes for one in shell_terms(cls)}
    for name in ALL_VERBS:
        command = command_of(name)
        made = {one.name_on("shell") for each, cls, verb in VERBS if each is command for one in shell_terms(cls, verb)}
        typed = {str(one.name) for one in command.params if (str(one.name), one.opts[0]) in known} - made
        assert typed <= TYPED_BY_HAND.get(name, set()), name


@pytest.mark.parametrize(("operator", "several"), OPERATORS, ids=lambda one: getattr(one, "__name__", None))
def test_an_operator_has_a_parameter_for_each_of_its_terms(operator: Any, several: list[tuple[type, str]]) -> None:
    """In its own signature, which Airflow and an editor read, with its help in the docstring of the same class."""
    wanted = {one.name for cls, verb in several for one in terms_of(cls, verb) if one.declared.in_operators is True}
    assert sorted(one.name for one in operator.taken) == sorted(wanted)
    parameters, text = inspect.signature(operator.__init__).parameters, inspect.getdoc(operator) or ""
    names = [one.name_on("operators") for one in fields_of(operator.taken)]
    assert set(names) <= set(operator.template_fields)
    assert len(operator.template_fields) == len(set(operator.template_fields))
    for one, name in zip(fields_of(operator.taken), names, strict=True):
        default = inspect.Parameter.empty if one.is_required else default_of(one)
        assert parameters[name].default == default
        assert text.count(f":param {name}: ") == 1
        if one.choices:
            assert operator.literal_choices[name] == one.choices
        if one.kind in ("texts", "command", "paths", "mapping", "lists", "part"):
            assert operator.template_fields_renderers[name] in ("json", "yaml")


def test_no_operator_types_a_term_by_hand() -> None:
    """Each parameter with the name of a term is made from its declaration, or means another thing."""
    known = {
        one.name_on("operators")
        for cls in (Version, StartTerms, StreamTerms, CodeTerms, UpgradeTerms, RollbackTerms, StateRewrite,
                    RestartPolicy, AlertRules, RetentionPolicy, AgentSettings, *ORDER_TERMS)
        for one in fields_of(terms_of(cls))
    }  # fmt: skip
    known -= {"timeout_seconds"}  # every task has it
    for made in airflow_classes():
        if "__init__" in vars(made) and not made.__name__.endswith(("Hook", "Trigger", "Notifier")):
            own = known & set(inspect.signature(made.__init__).parameters)
            by_hand = own - set(names_of(getattr(made, "taken", ())))
            assert by_hand <= BY_HAND.get(made.__name__, set()), made.__name__


def test_what_a_change_does_not_give_stays() -> None:
    """Whatever a new version would have: its default is None, and its help does not promise another one."""
    assert {default_of(one) for one in fields_of(kept(terms_of(Version, "change")))} == {None}
    text = inspect.getdoc(PlanUpgradeOperator) or ""
    assert ":param master: Spark's master. (templated)" in text


def test_terms_come_from_default_args_and_by_mapping() -> None:
    """As Airflow fills and expands parameters, which it finds in signatures."""
    given = {"warm_return": True, "strategy": "undo", "owner": "data", "mirrors": ["s3://b/m"], "revive": True}
    with DAG("terms", default_args={**given, "version_label": "v", "partitions": 4}):
        one = UpgradeStreamOperator(task_id="one", stream_id="s")
        back = RollbackStreamOperator(task_id="back", stream_id="s")
        deploy = DeployStreamOperator(task_id="deploy", stream_id="s", application="a.py")
        rescale = RescaleStreamOperator(task_id="rescale", stream_id="s")
        many = UpgradeStreamOperator.partial(task_id="many", stream_id="s", allow_drain=True).expand(
            healthy_batches=[1, 2]
        )
        DeployStreamOperator.partial(task_id="each", application="a.py").expand(stream_id=["a", "b"], settings=[{}, {}])
        with pytest.raises(TypeError, match="healthy_batch"):
            UpgradeStreamOperator.partial(task_id="slip", stream_id="s", healthy_batch=1).expand(mode=["auto"])
    assert (one.warm_return, one.warm, one.version_label, back.strategy) == (True, True, "v", "undo")
    assert (deploy.mirrors, deploy.revive, deploy.owner, deploy.stream_owner) == (["s3://b/m"], True, "data", None)
    assert rescale.partitions == 4
    assert many.partial_kwargs["allow_drain"] is True


def test_a_file_of_a_stream_has_a_field_for_each_term_of_an_upgrade() -> None:
    """Or the reason why it has none."""
    for one in terms_of(UpgradeTerms):
        if one.declared.in_files is True:
            assert UpgradePart.model_fields[one.name].default == one.default
        else:
            assert one.declared.in_files


@pytest.mark.parametrize("cls", [UpgradeTerms, RollbackTerms])
def test_every_field_is_a_term(cls: type) -> None:
    """None is a plain field, which no surface would have; its default is a value that it may have."""
    names = {field.name for field in dataclasses.fields(cls)}
    assert {one.name for one in terms_of(cls)} == names
    assert [one.name for one in terms_of(cls) if one.problem(one.default)] == []


@pytest.mark.parametrize("one", [*terms_of(UpgradeTerms), *terms_of(RollbackTerms)], ids=lambda one: str(one.name))
def test_a_help_text_fits_every_surface(one: Term) -> None:
    """It starts in lower case and ends without a full stop, so that each surface can write it as its own texts."""
    assert one.declared.help[0].islower()
    assert not one.declared.help.endswith(".")


def test_the_source_of_the_operators_is_as_their_terms_are_declared() -> None:
    """``python docs/refresh.py`` writes it."""
    found = runpy.run_path(str(ROOT / "docs" / "operators.py"))["renewed_modules"]()
    assert [path.name for path, source in found.items() if path.read_text() != source] == []


def test_a_new_option_of_upgrade_is_one_field(tmp_path: Path) -> None:
    """In a scratch copy one file is edited by hand; after the command that writes text every surface has it."""
    copy = ScratchCopy(tmp_path)
    copy.insert(f"{TERMS}/order.py", NEW, before="    roll_back_if_slower: float | None = term(\n")
    by_hand = copy.changed()
    assert by_hand == [f"{TERMS}/order.py"]
    copy.run("docs/refresh.py")
    found = json.loads(copy.run("-c", ASKED).splitlines()[-1])
    assert "--healthy-restarts N" in found["shell"]
    assert "as --caught-up for" in " ".join(found["shell"].split())
    assert "--healthy-restarts" in found["refused"]
    assert found["templated"] is True
    assert found["parameter"] == "healthy_restarts: 'int | str | None' = None"
    assert ":param healthy_restarts: healthy only when at most" in found["described"]
    assert (found["rendered"], found["file"], found["record"]) == (7, 7, True)
    assert found["schema"]["anyOf"] == [{"minimum": 0, "type": "integer"}, {"type": "null"}]
    page = (tmp_path / "docs" / "reference" / "stream-files.md").read_text()
    assert "| `upgrade.healthy_restarts` |  | `--healthy-restarts` |" in page
    written = set(copy.changed()) - set(by_hand)
    assert written == {"airflow_streamstate/operators/upgrade.py", "docs/reference/stream-files.md"}


def test_a_new_option_of_a_version_is_one_field(tmp_path: Path) -> None:
    """In a scratch copy one file is edited by hand: files of streams, `diff`, `export`, digest and records have it."""
    copy = ScratchCopy(tmp_path)
    copy.insert(f"{TERMS}/version.py", OF_VERSION, before="    mirrors: tuple[Word, ...] = term(\n")
    assert copy.changed() == [f"{TERMS}/version.py"]
    (tmp_path / "streams").mkdir()
    found = json.loads(copy.run("-c", ASKED_OF_VERSION, str(tmp_path / "streams")).splitlines()[-1])
    assert (found["asked"], found["exported"], found["not_exported"]) == (7, 7, False)
    assert found["refused"].endswith("s.yaml:3: nice_level: it cannot be '20'; use a whole number from 0 to 19.")
    assert found["schema"]["anyOf"] == [{"maximum": 19, "minimum": 0, "type": "integer"}, {"type": "null"}]
    assert found["differences"] == [{"name": "nice_level", "before": "", "after": "7"}]
    assert (found["digests"], found["record"]) == (True, True)
    assert "| `nice_level` |  | `--nice-level` |" in found["docs"]
