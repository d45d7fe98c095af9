"""Writing the file of a stream that runs, with its pinned code next to it: read again, it differs in nothing."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from airflow_streamstate.control.artifacts import materialise
from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.observation import NOT_ENDED
from airflow_streamstate.declarations.diff import by_name, recorded_terms
from airflow_streamstate.declarations.stream_file import Place, is_path, place_of
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.launch.interface import PYTHON_ENV
from airflow_streamstate.protocol.redaction import is_reference, named_secrets, secrets_in_value, secrets_of
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.version import Artifact, LauncherChoice, StreamTerms, Version
from airflow_streamstate.store.local import disk_errors

_BESIDE = ("application", "modules")
"""What is exported where the script's imports find it; other files are in a folder for each term."""


def export_stream(controller: Controller, stream_id: str, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Write ``STREAM.yaml`` into a folder, and the pinned code of the current deployment into ``STREAM/`` next to it.

    Returns:
        The file, and sentences on what it cannot express.

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
    own = {"id": stream_id, **({} if status.state in NOT_ENDED else {"desired_state": "stopped"})}
    of_version, notes = version_fields(spec.version, controller.home.home.uri, code)
    of_stream, more_notes = _of_stream(recorded_terms(register, rules), spec.version)
    values = _merged(own, of_version, of_stream)
    with disk_errors("export", stream_id, folder):
        folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{stream_id}.", dir=folder))
        try:
            for artifact, below in _placed(spec.version):
                materialise(controller.home.home, stream_id, artifact, made / "code" / below)
            text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
            (made / "file").write_text(text, encoding="utf-8")
            (made / "code").rename(code)
            (made / "file").rename(file)  # last: a file without its code would be read
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return file, (*notes, *more_notes)


def _placed(version: Version) -> Iterator[tuple[Artifact, str]]:
    """Each pinned file, and the folder that it is put into."""
    for one in terms_of(Version):
        value = getattr(version, one.name)
        files = value if isinstance(value, tuple) else (value,)
        yield from ((file, _folder_of(one)) for file in files if isinstance(file, Artifact))
    if version.launcher is not None and version.launcher.python_env is not None:
        yield version.launcher.python_env, PYTHON_ENV


def _folder_of(one: Term) -> str:
    return "" if one.name in _BESIDE else one.name


def version_fields(version: Version, home_uri: str, code: Path) -> tuple[dict[str, Any], list[str]]:
    """The fields of a version, and a sentence for each secret that is left out."""
    given, notes = dict(vars(version)), list[str]()
    given["launcher"] = _with_python_env(version.launcher, code)
    for one in terms_of(Version):
        value = given[one.name]
        if one.kind == "mapping":
            given[one.name], left_out = _without_secrets(one.name, value)
        elif isinstance(value, tuple):
            given[one.name], left_out = _without_secret_texts(one.name, [_in_file(one, each, code) for each in value])
        else:
            given[one.name], left_out = _in_file(one, value, code), []
        notes += left_out
    default = {**_defaults(Version), "settings": vars(default_settings(home_uri))}
    return _changed(Version, given, default, ()), notes


def _in_file(one: Term, value: Any, code: Path) -> Any:
    """A file as its path, or, if only modules next to the script are meant, as its name."""
    if not isinstance(value, Artifact):
        return value
    return "/".join(filter(None, (code.name, _folder_of(one), value.name))) if is_path(one) else value.name


def _with_python_env(launcher: LauncherChoice | None, code: Path) -> LauncherChoice | None:
    if launcher is None or launcher.python_env is None:
        return launcher
    path = str(code.absolute() / PYTHON_ENV / launcher.python_env.name)  # a launcher takes absolute paths alone
    return replace(launcher, options={**launcher.options, PYTHON_ENV: path}, python_env=None)


def _of_stream(recorded: Mapping[str, Any], version: Version) -> tuple[dict[str, Any], list[str]]:
    """The fields of a stream; a file has ``at_mirrors`` only with mirrors: a sentence if it is left out."""
    retention, notes = dict(recorded["retention"]), list[str]()
    if retention.get("at_mirrors") and not version.mirrors:
        del retention["at_mirrors"]
        notes.append("retention.at_mirrors is left out, since the stream has no mirrors")
    return _changed(StreamTerms, {**recorded, "retention": retention}, _defaults(StreamTerms), ()), notes


def _defaults(cls: type) -> dict[str, Any]:
    return {one.name: one.default for one in terms_of(cls)}


def _changed(cls: type, given: Mapping[str, Any], default: Mapping[str, Any], within: Place) -> dict[str, Any]:
    """The terms of a class that have another value than by default, as a file has them."""
    found: dict[str, Any] = {}
    for one in terms_of(cls):
        value, usual = given.get(one.name, one.default), default.get(one.name)
        if one.kind == "part":
            inner = {**_defaults(one.part), **by_name(usual)}
            found = _merged(found, _changed(one.part, by_name(value), inner, place_of(one, within)))
        elif value != usual and not (_is_nothing(value) and _is_nothing(usual)):
            for name in reversed(place_of(one, within)):
                value = {name: value}
            found = _merged(found, value)
    return found


def _is_nothing(value: Any) -> bool:
    return value is None or value in ("", (), [], {})


def _merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Objects of a file as one, and the objects in them."""
    found: dict[str, Any] = {}
    for name, value in ((name, value) for part in parts for name, value in part.items()):
        both = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = _merged(found[name], value) if both else value
    return found


def _without_secret_texts(kind: str, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The texts, a reference in place of each secret, and a sentence for each."""
    kept, notes = [], []
    for argument, name, secret in named_secrets(texts):
        if not secrets_of({}, [argument] if secret is None else [f"{name}={secret}"]):
            kept.append(argument)
            continue
        reference = f"env://{re.sub(r'[^A-Z0-9]+', '_', name.upper()).strip('_') or 'ARGUMENT'}"
        kept.append(reference if secret is None else argument.removesuffix(secret) + reference)
        notes.append(f"one of {kind} is a secret in the home, and is left out: give it as {reference}")
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
