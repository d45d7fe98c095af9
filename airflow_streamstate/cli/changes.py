"""The options of a version, and what is asked for by them: of the verbs that start a stream, and that change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_streamstate.cli.options import Ordering, options
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.cli.term_options import term_options, values_given
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms.start import HandoverTerms, StartTerms
from airflow_streamstate.protocol.terms.stream import StreamTerms
from airflow_streamstate.protocol.terms.version import LauncherChoice, LiteralSecretTerms, Version

if TYPE_CHECKING:
    from airflow_streamstate.controller.request.requests import ChangeRequest, DeployRequest

literal_secrets_option = term_options(LiteralSecretTerms)
_OF_A_CHANGE = (Version, HandoverTerms, StateRewrite)
change_options = options(
    term_options(Version, "change", stays=True),
    literal_secrets_option,
    term_options(HandoverTerms, "change", stays=True),
    term_options(StateRewrite, stays=True),
)
"""Of the verbs that change what a stream runs."""


def names_anything(given: Mapping[str, Any]) -> bool:
    """Whether any of the ``change_options`` is given; a label alone changes nothing that runs."""
    labels = {one.name for one in terms_of(Version) if one.declared.changes == "label"}
    return any(values_given(cls, given).keys() - labels for cls in _OF_A_CHANGE)


def change_of(stream_id: str, given: Mapping[str, Any], ordering: Ordering) -> ChangeRequest:
    """The request; omitted options leave the stream as it is. Raises InvalidRequestError for an invalid one."""
    from airflow_streamstate.controller.request.requests import change_request

    return change_request(
        stream_id,
        reason=ordering.reason,
        **version_given(given),
        **values_given(HandoverTerms, given),
        **values_given(StateRewrite, given),
    )


def deploy_request(
    session: ShellSession, stream_id: str, ordering: Ordering, given: Mapping[str, Any]
) -> DeployRequest:
    """The request of the options of a version, of how it starts, and of its stream. Raises as ``change_of``."""
    from airflow_streamstate.controller.request.requests import deploy_request as request_to_deploy

    version = version_given(given)
    if "settings" in version:
        version["settings"] = replace(default_settings(session.home().home.uri), **version["settings"])
    mirrors = session.controller().mirrors
    for uri in version.get("mirrors", ()):
        mirrors.open(uri)  # refuses the home itself
    return request_to_deploy(
        stream_id,
        **ordering.facts,
        **version,
        **values_given(StartTerms, given),
        **values_given(StreamTerms, given),
    )


def version_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given of a version, as ``read_patch`` takes it; of its settings only those that are given."""
    found = {**values_given(Version, given), **values_given(LiteralSecretTerms, given)}
    if "launcher" in found:
        found["launcher"] = launcher_of(given)
    return found


def launcher_of(given: Mapping[str, Any]) -> LauncherChoice | None:
    """The launcher of ``--launcher`` and its options; None where neither is given.

    Without a name the options are those of the launcher that the stream has.
    """
    values = values_given(LauncherChoice, given)
    return LauncherChoice(**{"name": "", **values}) if values else None
