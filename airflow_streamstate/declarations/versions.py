"""The requests that a declaration stands for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_streamstate.controller.request.literal_secrets import CONSENT
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.request.requests import deploy_request as request_to_deploy
from airflow_streamstate.controller.request.rewrites import conf_of
from airflow_streamstate.controller.request.script_modules import modules_beside
from airflow_streamstate.controller.upgrade.requests import UpgradeRequest
from airflow_streamstate.declarations.reading import DeclaredStream
from airflow_streamstate.declarations.term_parts import is_path, takes_uris, values_in
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import LOCAL, PYTHON_ENV
from airflow_streamstate.launch.options import plain_options
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.protocol.terms.declaration import Term, check_terms, terms_of, values_of
from airflow_streamstate.protocol.terms.start import StartTerms
from airflow_streamstate.protocol.terms.stream import StreamTerms
from airflow_streamstate.protocol.terms.upgrade import UpgradeTerms
from airflow_streamstate.protocol.terms.version import LauncherChoice, Version
from airflow_streamstate.store.open import path_of_file_uri


def deploy_request(declared: DeclaredStream, home_uri: str, request_id: str | None = None) -> DeployRequest:
    """The request that deploys all of a declaration.

    Raises:
        InvalidRequestError: a value is malformed, or two contradict each other.
    """
    try:
        return _deploy_request(declared, home_uri, request_id)
    except InvalidRequestError as error:
        error.next_step = error.next_step.replace(CONSENT, "")  # a file has no such field
        raise


def _deploy_request(declared: DeclaredStream, home_uri: str, request_id: str | None) -> DeployRequest:
    if declared.root is not None:
        _keep_below(declared)
    return request_to_deploy(
        declared.stream_id,
        **_version_values(declared, home_uri),
        **values_in(StartTerms, declared.declaration),
        **stream_values(declared),
        reason=f"declared in {declared.path.name}",
        request_id=request_id,
    )


def _version_values(declared: DeclaredStream, home_uri: str) -> dict[str, Any]:
    """What its file says of its version, as ``read_patch`` takes it."""
    given = values_in(Version, declared.declaration)
    paths = (one for one in terms_of(Version) if is_path(one) and one.name in given)
    found = given | {one.name: _with_paths(declared, one, given[one.name]) for one in paths}
    folder = given.get("working_folder")
    found["working_folder"] = Path(folder).expanduser() if folder else None  # a relative one is refused
    if "launcher" in given:
        options = plain_options(given["launcher"].get("options", {}))
        found["launcher"] = LauncherChoice(**{**given["launcher"], "options": options})
    conf = given.get("conf", {})
    return found | {
        "conf": {**conf, **_conf_of_state(_asked_state(declared), conf)},
        "settings": replace(default_settings(home_uri), **given.get("settings", {})),
    }


def check_script(declared: DeclaredStream) -> None:
    """Compile the script, where its driver has this machine's Python: the error then comes before any driver.

    Raises:
        InvalidRequestError: it has a syntax error; with its line.
    """
    given = values_in(Version, declared.declaration)
    if given.get("spark_conn_id") is not None or given.get("launcher", {}).get("name", LOCAL) != LOCAL:
        return
    path = _path(declared, given["application"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape is the script's own matter
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        place = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else str(path)
        raise InvalidRequestError(
            "the script has a syntax error",
            place=place,
            error=error.msg if isinstance(error, SyntaxError) else str(error),
            next_step="Mend the script.",
        ) from None
    except OSError:
        pass  # said by the read of its version


def upgrade_request(declared: DeclaredStream, home_uri: str, before: Version) -> UpgradeRequest:
    """The request that hands the stream over to the declared version.

    Args:
        before: the version of the current deployment.

    Raises:
        InvalidRequestError: as ``deploy_request``.
    """
    rewrite = rewrite_of(declared, before)
    # An upgrade starts as the state says; ``start`` is of deployments that are no upgrades.
    request = deploy_request(declared, home_uri)
    request = replace(request, terms=replace(request.terms, start=None), rewrite=rewrite, stream=StreamTerms())
    terms = upgrade_terms(declared)
    if rewrite is not None:
        terms = replace(terms, mode="restore" if terms.mode == "auto" else terms.mode, allow_drain=False)
    return UpgradeRequest(request, terms)


def upgrade_terms(declared: DeclaredStream) -> UpgradeTerms:
    """How a changed version of it takes over."""
    return UpgradeTerms(**values_in(UpgradeTerms, declared.declaration))


def version_after(declared: DeclaredStream, home_uri: str, before: Version) -> Version:
    """The declared version as it follows another one. Raises as ``deploy_request``."""
    rewrite = rewrite_of(declared, before)
    return replace(deploy_request(declared, home_uri), rewrite=rewrite).following(before)


def stream_values(declared: DeclaredStream) -> dict[str, Any]:
    """What its file says of the stream itself, by the names of ``StreamTerms``: what is left out has its default."""
    given = values_in(StreamTerms, declared.declaration)
    return {one.name: _whole(one, given.get(one.name)) for one in terms_of(StreamTerms)}


def _whole(one: Term, given: Any) -> Any:
    if one.kind == "part":
        is_there = given is not None or not one.is_optional
        return {**values_of(one.part, one.part()), **(given or {})} if is_there else {}
    if one.kind == "mapping":
        return given or {}
    return (given or "").strip() if one.kind == "text" else given


def rewrite_of(declared: DeclaredStream, before: Version) -> StateRewrite | None:
    """How the state is rewritten, if the declaration asks for another form than the current version has."""
    asked = _asked_state(declared)
    check_terms(asked)
    needed = {name: text for name, text in conf_of(asked).items() if before.conf.get(name) != text}
    kept = {name: value for name, value in values_of(StateRewrite, asked).items() if _is_needed(name, value, needed)}
    rewrite = StateRewrite(**kept)
    return None if rewrite == StateRewrite() else rewrite


def _is_needed(name: str, value: Any, needed: Mapping[str, str]) -> bool:
    """Whether the current version lacks a setting that this value stands for, or it stands for none."""
    conf = conf_of(StateRewrite(**{name: value}))
    return not conf or not needed.keys().isdisjoint(conf)


def _asked_state(declared: DeclaredStream) -> StateRewrite:
    return StateRewrite(**values_in(StateRewrite, declared.declaration))


def _conf_of_state(asked: StateRewrite, conf: Mapping[str, str]) -> dict[str, str]:
    found = conf_of(asked)
    for name, text in found.items():
        if conf.get(name, text) != text:
            raise InvalidRequestError(
                "the settings of the state contradict its configuration",
                setting=name,
                conf=conf[name],
                state=text,
                next_step="Leave the setting out of conf.",
            )
    return found


def _with_paths(declared: DeclaredStream, one: Term, given: Any) -> Any:
    """The paths of a term."""
    if one.kind == "path":
        return _path(declared, given)
    if takes_uris(one):
        return tuple(text if _is_uri(text) else str(_path(declared, text)) for text in given)
    return tuple(_path(declared, text) for text in given)


def _path(declared: DeclaredStream, text: str) -> Path:
    """A path of the file; not resolved: a folder that is swapped by a link stays one."""
    return declared.path.parent / Path(text).expanduser()


def _keep_below(declared: DeclaredStream) -> None:
    """Check that no local path of the file leaves its root: none that it names, and none that is found there.

    Raises:
        InvalidRequestError: one does; or the modules of the script cannot be found.
    """
    given = values_in(Version, declared.declaration)
    options = given.get("launcher", {}).get("options", {})
    texts = list(map(str, filter(None, [given.get("working_folder"), options.get(PYTHON_ENV)])))
    for one in terms_of(Version):
        if is_path(one) and one.name in given:
            named = [given[one.name]] if one.kind == "path" else given[one.name]
            texts += [text for text in named if not (takes_uris(one) and _is_elsewhere(text))]
    for text in texts:
        _need_below(declared, _path(declared, path_of_file_uri(text) if text.startswith("file:") else text), text)
    for text in given.get("py_files", ()):
        for path in _path(declared, text).rglob("*"):  # of a folder, what is linked into it
            _need_below(declared, path, text)
    for module in modules_beside(_path(declared, given["application"]), given.get("modules")):
        _need_below(declared, module.path, module.name)


def _need_below(declared: DeclaredStream, path: Path, text: str) -> None:
    if declared.root is not None and not path.resolve().is_relative_to(declared.root.resolve()):
        raise InvalidRequestError(
            "this path leaves the root of these files",
            path=text,
            leads_to=str(path.resolve()),
            root=str(declared.root),
            next_step="Move what is needed below the root; or whoever applies the file names another root.",
        )


def _is_elsewhere(text: str) -> bool:
    return _is_uri(text) and not text.startswith("file:")


def _is_uri(text: str) -> bool:
    return "://" in text or text.startswith("local:")
