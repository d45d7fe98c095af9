"""What a command names beyond the home, which it thereby allows: a launcher with its options, references, stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.launch.interface import LOCAL
from airflow_streamstate.protocol.references import is_reference, split_argument
from airflow_streamstate.protocol.terms.version import LauncherChoice

if TYPE_CHECKING:
    from airflow_streamstate.allowed import Allowed, AllowedPlace
    from airflow_streamstate.controller.request.requests import ChangeRequest, DeployRequest

HERE = LauncherChoice(LOCAL)


def allow_request(session: ShellSession, request: DeployRequest) -> None:
    """Allow what a request to deploy names. Raises InvalidRequestError where the list of this machine is malformed."""
    from airflow_streamstate.snapshot.placing import uri_of

    version = request.version
    stores = (*version.mirrors, *filter(None, [uri_of(version.snapshots)]))
    is_here = version.launcher is None
    session.allow(_named(session, vars(version), (version.launcher or HERE,), stores, is_here=is_here))


def allow_change(session: ShellSession, change: ChangeRequest) -> None:
    """Allow what a change names; options beside those of the launcher that the stream has only where that is allowed.

    Raises InvalidRequestError where the list of this machine is malformed.
    """
    values = change.patch.values
    is_here = values.get("launcher") == HERE
    session.allow(_named(session, values, _launchers_after(session, change), is_here=is_here))


def allow_here(session: ShellSession) -> None:
    """Allow the driver that this command runs on this machine, for this command alone: a watcher of this machine runs
    none for that."""
    from airflow_streamstate.allowed import Allowed

    session.allow(Allowed(launchers=(_place(session, HERE),)), is_kept=False)


def allow_stores(session: ShellSession, uris: Iterable[str]) -> None:
    """Allow the stores at these URIs. Raises InvalidRequestError for a URI of no store, too."""
    from airflow_streamstate.allowed import Allowed
    from airflow_streamstate.store.open import open_store

    session.allow(Allowed(stores=tuple(dict.fromkeys(open_store(uri).uri for uri in uris))))


def allow_checkpoints(session: ShellSession, uris: Iterable[str]) -> None:
    """Allow the places of foreign checkpoints, so that ``--give-up`` may take their barriers back."""
    from airflow_streamstate.allowed import Allowed

    session.allow(Allowed(stores=tuple(dict.fromkeys(uris))))


def _launchers_after(session: ShellSession, change: ChangeRequest) -> tuple[LauncherChoice, ...] | None:
    # A Spark connection starts drivers on this machine.
    from airflow_streamstate.controller.request.patch import launcher_after

    values = change.patch.values
    asked = values.get("launcher") if values.get("spark_conn_id") is None else HERE
    if asked is None:
        return None
    try:
        home = session.home()
        control = home.need_stream(change.stream_id)
        before = control.spec(str(control.need_register().value.deployment_id)).version.launcher
        after = launcher_after(before, asked)
    except StreamStateError:
        return None  # the verb itself says what is wrong
    if before is not None and after is not None and after.name == before.name:
        try:
            home.config.allowed.check_place(_place(session, before))
        except InvalidRequestError:
            return None  # nobody has named the rest of this place
    return (after or HERE,)


def _named(
    session: ShellSession,
    values: Mapping[str, Any],
    launchers: Iterable[LauncherChoice] | None,
    stores: Iterable[str] = (),
    *,
    is_here: bool,
) -> Allowed:
    """``values``: of a version, by name; a change keeps the stores that the stream has. ``is_here``: its drivers run on
    this machine."""
    from airflow_streamstate.allowed import Allowed
    from airflow_streamstate.launch.bundle import sent_files
    from airflow_streamstate.launch.submit_options import SubmitOptions
    from airflow_streamstate.store.open import open_store

    places = []
    for launcher in launchers or ():
        with suppress(InvalidRequestError):  # one that is not installed, which the verb itself refuses
            places.append(_place(session, launcher))
    spark = tuple(filter(None, [values.get("spark_conn_id")]))
    uris = tuple(dict.fromkeys(open_store(uri).uri for uri in stores))
    # The files of this machine that its configuration has sent to a driver elsewhere; others are pinned.
    files = () if is_here else tuple(map(str, sent_files(SubmitOptions(conf=values.get("conf", {})))))
    return Allowed(tuple(dict.fromkeys(_references(values))), tuple(places), spark, uris, files)


def _place(session: ShellSession, launcher: LauncherChoice) -> AllowedPlace:
    from airflow_streamstate.allowed import AllowedPlace
    from airflow_streamstate.launch.launchers import Launchers

    reaching = Launchers(session.clock).reaching_of(launcher.name)
    return AllowedPlace.of(launcher.name, launcher.conn_id, launcher.options, reaching)


def _references(values: Mapping[str, Any]) -> Iterable[str]:
    found = [split_argument(argument)[1] for argument in values.get("arguments", ())]
    found += [text for name in ("conf", "environment") for text in values.get(name, {}).values()]
    return filter(is_reference, found)
