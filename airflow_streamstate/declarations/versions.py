"""The requests that a declaration stands for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_streamstate.controller.request.literal_secrets import CONSENT
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.request.requests import deploy_request as request_to_deploy
from airflow_streamstate.controller.request.rewrites import check_rewrite, conf_of
from airflow_streamstate.controller.request.script_modules import modules_beside
from airflow_streamstate.controller.upgrade.requests import UpgradeRequest
from airflow_streamstate.declarations.model import StatePart
from airflow_streamstate.declarations.reading import DeclaredStream
from airflow_streamstate.declarations.term_parts import terms_in
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import LOCAL, PYTHON_ENV
from airflow_streamstate.launch.options import plain_options
from airflow_streamstate.protocol.alerts import AlertRules
from airflow_streamstate.protocol.ownership import Ownership
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.restarts import RestartPolicy
from airflow_streamstate.protocol.retention import RetentionPolicy
from airflow_streamstate.protocol.settings import AgentSettings, default_settings
from airflow_streamstate.protocol.terms.stream import StreamTerms
from airflow_streamstate.protocol.terms.upgrade import UpgradeTerms
from airflow_streamstate.protocol.terms.version import LauncherChoice, Version
from airflow_streamstate.store.open import open_store, path_of_file_uri


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
    one, launcher = declared.declaration, declared.declaration.launcher
    if declared.root is not None:
        _keep_below(declared)
    return request_to_deploy(
        one.id,
        application=_path(declared, one.application),
        arguments=one.arguments,
        master=one.master,
        conf={**one.conf, **_conf_of_state(one.state, one.conf)},
        environment=one.environment,
        py_files=_paths(declared, one.py_files),
        files=_paths(declared, one.files),
        jars=tuple(jar if _is_uri(jar) else str(_path(declared, jar)) for jar in one.jars),
        packages=one.packages,
        modules=one.modules,
        working_folder=_working_folder(declared),
        start=one.start,
        allow_new_queries=one.allow_new_queries,
        accept_hazards=upgrade_terms(declared).accept_hazards,
        rename_queries=one.rename_queries,
        move_sources=one.move_sources,
        version_label=one.version_label,
        spark_conn_id=one.spark_conn_id,
        settings=settings_of(declared, home_uri),
        attaches=one.attaches,
        mirrors=tuple(dict.fromkeys(open_store(uri).uri for uri in one.mirrors)),
        snapshots=one.snapshots.place,
        on_query_failure=one.on_query_failure,
        launcher=None
        if launcher is None
        else LauncherChoice(launcher.name, plain_options(launcher.options), launcher.conn_id),
        restart_policy=policy_of(declared),
        alert_rules=alert_rules_of(declared),
        owner=one.owner,
        labels=one.labels,
        retention=_retention_values(declared),
        reason=f"declared in {declared.path.name}",
        request_id=request_id,
    )


def check_script(declared: DeclaredStream) -> None:
    """Compile the script, where its driver has this machine's Python: the error then comes before any driver.

    Raises:
        InvalidRequestError: it has a syntax error; with its line.
    """
    one = declared.declaration
    if one.spark_conn_id is not None or (one.launcher is not None and one.launcher.name != LOCAL):
        return
    path = _path(declared, one.application)
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
    return terms_in(UpgradeTerms, declared.declaration.upgrade)


def version_after(declared: DeclaredStream, home_uri: str, before: Version) -> Version:
    """The declared version as it follows another one. Raises as ``deploy_request``."""
    rewrite = rewrite_of(declared, before)
    return replace(deploy_request(declared, home_uri), rewrite=rewrite).following(before)


def policy_of(declared: DeclaredStream) -> dict[str, Any]:
    """The values of its restart policy: all of them, since a value that is left out has its default."""
    given = declared.declaration.restart.model_dump(exclude_none=True)
    return vars(RestartPolicy().changed(given)).copy()


def alert_rules_of(declared: DeclaredStream) -> dict[str, Any]:
    """The values of its alert rules: all of them, since a value that is left out has its default.

    Raises:
        InvalidRequestError: one is out of its range.
    """
    given = declared.declaration.alerts.model_dump(exclude_none=True)
    return vars(AlertRules().changed(given)).copy()


def ownership_of(declared: DeclaredStream) -> Ownership:
    """Its owner and labels."""
    return Ownership().changed(declared.declaration.owner, declared.declaration.labels)


def retention_of(declared: DeclaredStream) -> RetentionPolicy | None:
    """Which of its snapshots stay; None where the file does not say."""
    return RetentionPolicy.of(_retention_values(declared))


def _retention_values(declared: DeclaredStream) -> dict[str, Any]:
    part = declared.declaration.retention
    return {} if part is None else part.model_dump()


def settings_of(declared: DeclaredStream, home_uri: str) -> AgentSettings:
    """The settings of its agent, with the defaults of the home.

    Raises:
        InvalidRequestError: one is out of its range.
    """
    given = declared.declaration.settings.model_dump(exclude_none=True)
    every = declared.declaration.snapshots.every_seconds
    return replace(default_settings(home_uri), snapshot_every_seconds=every, **given)


def rewrite_of(declared: DeclaredStream, before: Version) -> StateRewrite | None:
    """How the state is written anew, where the declaration asks for another form than the current version has."""
    asked = declared.declaration.state
    check_rewrite(asked.partitions, asked.store, asked.checkpoint_format)
    whole = StateRewrite(asked.partitions, asked.store, asked.checkpoint_format)
    needed = {name: text for name, text in conf_of(whole).items() if before.conf.get(name) != text}
    rewrite = StateRewrite(
        asked.partitions if _differs(needed, StateRewrite(partitions=asked.partitions)) else None,
        asked.store if _differs(needed, StateRewrite(state_store=asked.store)) else None,
        asked.checkpoint_format if _differs(needed, StateRewrite(checkpoint_format=asked.checkpoint_format)) else None,
        is_automatic=declared.declaration.upgrade.auto_migrate,
    )
    return None if rewrite == StateRewrite() else rewrite


def _differs(needed: Mapping[str, str], part: StateRewrite) -> bool:
    return not needed.keys().isdisjoint(conf_of(part))


def _conf_of_state(state: StatePart, conf: Mapping[str, str]) -> dict[str, str]:
    found = conf_of(StateRewrite(state.partitions, state.store, state.checkpoint_format))
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


def _paths(declared: DeclaredStream, texts: Sequence[str]) -> tuple[Path, ...]:
    return tuple(_path(declared, text) for text in texts)


def _path(declared: DeclaredStream, text: str) -> Path:
    """A path of the file; not resolved: a folder that is swapped by a link stays one."""
    return declared.path.parent / Path(text).expanduser()


def _keep_below(declared: DeclaredStream) -> None:
    """Check that no local path of the file leaves its root: none that it names, and none that is found there.

    Raises:
        InvalidRequestError: one does; or the modules of the script cannot be found.
    """
    one = declared.declaration
    texts = [one.application, *one.py_files, *one.files, *filter(None, [one.working_folder])]
    texts += [path_of_file_uri(jar) if jar.startswith("file:") else jar for jar in one.jars if not _is_elsewhere(jar)]
    if one.launcher is not None and (python_env := one.launcher.options.get(PYTHON_ENV)):
        texts.append(str(python_env))
    for text in texts:
        _need_below(declared, _path(declared, text), text)
    for text in one.py_files:
        for path in _path(declared, text).rglob("*"):  # of a folder, what is linked into it
            _need_below(declared, path, text)
    for module in modules_beside(_path(declared, one.application), one.modules):
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


def _is_elsewhere(jar: str) -> bool:
    return _is_uri(jar) and not jar.startswith("file:")


def _working_folder(declared: DeclaredStream) -> Path | None:
    text = declared.declaration.working_folder
    return None if text is None else Path(text).expanduser()  # a relative one is refused


def _is_uri(text: str) -> bool:
    return "://" in text or text.startswith("local:")
