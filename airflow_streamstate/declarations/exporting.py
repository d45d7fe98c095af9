"""Writing the file of a stream that runs, with its pinned code beside it: read again, it differs in nothing."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from airflow_streamstate.control.alerts import AlertBook
from airflow_streamstate.control.artifacts import materialise
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.observation import NOT_ENDED
from airflow_streamstate.declarations.model import AlertsPart, RestartPart, SettingsPart
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.launch.interface import PYTHON_ENV
from airflow_streamstate.protocol.alerts import AlertRules
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.redaction import named_secrets, secrets_in_value, secrets_of
from airflow_streamstate.protocol.references import is_reference
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.restarts import RestartPolicy
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.protocol.terms.version import Artifact, LauncherChoice
from airflow_streamstate.store.local import disk_errors

_KINDS = ("py_files", "files")
_JARS = "jars"


def export_stream(controller: Controller, stream_id: str, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Write ``STREAM.yaml`` into a folder, and the pinned code of the current deployment into ``STREAM/`` beside it.

    Returns:
        The file, and sentences on what it cannot say.

    Raises:
        StreamNotFoundError: there is no such stream.
        ConflictError: the file or the folder is there already.
        DataError: a pinned file is missing or altered.
    """
    file, code = folder / f"{stream_id}.yaml", folder / stream_id
    for path in (file, code):
        if path.exists():
            raise ConflictError(
                "this is there already, and an export writes over nothing",
                path=str(path),
                next_step="Remove it, or name another folder.",
            )
    status = controller.status(stream_id)
    control = controller.home.control(stream_id)
    spec, register = control.spec(status.deployment_id), control.need_register().value
    rules = AlertBook(control).rules()
    values, notes = _values(spec, register, rules, controller.home.home.uri, code, is_running=status.state in NOT_ENDED)
    with disk_errors("export", stream_id, folder):
        folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{stream_id}.", dir=folder))
        try:
            for artifact, below in _placed(spec):
                materialise(controller.home.home, stream_id, artifact, made / "code" / below)
            text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
            (made / "file").write_text(text, encoding="utf-8")
            (made / "code").rename(code)
            (made / "file").rename(file)  # last: a file without its code would be read
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return file, notes


def _placed(spec: DeploymentSpec) -> Iterator[tuple[Artifact, str]]:
    """Each pinned file, and the folder that it is put into."""
    yield from ((artifact, "") for artifact in (spec.version.application, *spec.version.modules))
    for kind in _KINDS:
        yield from ((artifact, kind) for artifact in getattr(spec.version, kind))
    yield from ((jar, _JARS) for jar in spec.version.jars if isinstance(jar, Artifact))
    if spec.version.launcher is not None and spec.version.launcher.python_env is not None:
        yield spec.version.launcher.python_env, PYTHON_ENV


def _values(
    spec: DeploymentSpec, register: StreamRegister, rules: AlertRules, home_uri: str, code: Path, *, is_running: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    arguments, of_arguments = _arguments(spec.version.arguments)
    conf, of_conf = _without_secrets("conf", spec.version.conf)
    environment, of_environment = _without_secrets("environment", spec.version.environment)
    retention, of_retention = _retention(register, spec)
    found: dict[str, Any] = {
        "id": spec.stream_id,
        "application": f"{code.name}/{spec.version.application.name}",
        "desired_state": "" if is_running else "stopped",
        "arguments": arguments,
        "master": spec.version.master,
        "spark_conn_id": spec.version.spark_conn_id,
        "launcher": _launcher(spec.version.launcher, code),
        "conf": conf,
        "environment": environment,
        **{kind: [f"{code.name}/{kind}/{one.name}" for one in getattr(spec.version, kind)] for kind in _KINDS},
        "jars": [f"{code.name}/{_JARS}/{jar.name}" if isinstance(jar, Artifact) else jar for jar in spec.version.jars],
        "packages": list(spec.version.packages),
        "modules": [one.name for one in spec.version.modules],
        "working_folder": spec.version.working_folder,
        "attaches": spec.version.attaches,
        "version_label": spec.version.version_label,
        "on_query_failure": "" if spec.version.on_query_failure == "script" else spec.version.on_query_failure,
        "restart": _changed(asdict(register.restart_policy), asdict(RestartPolicy()), RestartPart.model_fields),
        "alerts": _changed(asdict(rules), asdict(AlertRules()), AlertsPart.model_fields),
        "settings": _changed(
            asdict(spec.version.settings), asdict(default_settings(home_uri)), SettingsPart.model_fields
        ),
        "snapshots": _given(
            {"every_seconds": spec.version.settings.snapshot_every_seconds, "place": spec.version.snapshots}
        ),
        "mirrors": list(spec.version.mirrors),
        "retention": retention,
        "owner": register.ownership.owner,
        "labels": dict(register.ownership.labels),
    }
    return _given(found), (*of_arguments, *of_conf, *of_environment, *of_retention)


def _retention(register: StreamRegister, spec: DeploymentSpec) -> tuple[dict[str, Any] | None, list[str]]:
    """The retention; a file has ``at_mirrors`` only beside mirrors: a sentence where that is left out."""
    if register.retention is None:
        return None, []
    kept = {name: value for name, value in asdict(register.retention).items() if value is not None}
    if not kept["at_mirrors"] or spec.version.mirrors:
        return {name: value for name, value in kept.items() if value is not False}, []
    del kept["at_mirrors"]
    return kept, ["retention.at_mirrors is left out, since the stream has no mirrors"]


def _launcher(launcher: LauncherChoice | None, code: Path) -> dict[str, Any] | None:
    if launcher is None:
        return None
    options = dict(launcher.options)
    if launcher.python_env is not None:  # a launcher takes absolute paths alone
        options[PYTHON_ENV] = str(code.absolute() / PYTHON_ENV / launcher.python_env.name)
    return _given({"name": launcher.name, "options": options, "conn_id": launcher.conn_id})


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", (), [], {}, False)}


def _changed(values: Mapping[str, Any], default: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in names if values[name] != default[name]}


def _arguments(arguments: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The arguments, a reference in place of each secret, and a sentence for each."""
    kept, notes = [], []
    for argument, name, secret in named_secrets(arguments):
        if not secrets_of({}, [argument] if secret is None else [f"{name}={secret}"]):
            kept.append(argument)
            continue
        reference = f"env://{re.sub(r'[^A-Z0-9]+', '_', name.upper()).strip('_') or 'ARGUMENT'}"
        kept.append(reference if secret is None else argument.removesuffix(secret) + reference)
        notes.append(f"an argument is a secret in the home, and is left out: give it as {reference}")
    return kept, notes


def _without_secrets(kind: str, values: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The values, and a sentence for each that was left out as a secret."""
    kept, notes = {}, []
    for name, value in values.items():
        if not is_reference(value) and secrets_in_value(name, value):
            notes.append(f"{kind}.{name} is a secret in the home, and is left out: give it as env://NAME")
        else:
            kept[name] = value
    return kept, notes
