"""A whole version in place of the current one: what it does not name goes back to its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from airflow_streamstate.checkpoint.guards import PROVIDER, STATE_FORMAT
from airflow_streamstate.checkpoint.missing_pin import PARTITIONS
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.request.resolved_request import resolve_request
from airflow_streamstate.controller.request.rewrites import conf_of
from airflow_streamstate.controller.request.version import Version, digest_of
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.store.base import Store

_OF_THE_STATE = (PARTITIONS, PROVIDER, STATE_FORMAT)
"""Settings that belong to the state, which keeps them until it is written anew."""


@dataclass(frozen=True)
class WholeVersion:
    """A ``Change`` to all of a version.

    Attributes:
        request: the version; ``settings`` of None are those of the current deployment.
    """

    request: DeployRequest

    @property
    def stream_id(self) -> str:
        return self.request.stream_id

    @property
    def reason(self) -> str:
        return self.request.reason

    @property
    def renamed_queries(self) -> Mapping[str, str]:
        """As in ``DeployRequest``."""
        return self.request.renamed_queries

    @property
    def moved_sources(self) -> Mapping[str, str]:
        """As in ``DeployRequest``."""
        return self.request.moved_sources

    @property
    def fresh_queries(self) -> tuple[str, ...]:
        return self.request.fresh_queries

    @property
    def accept_lost_input(self) -> tuple[str, ...]:
        """Queries that may go on although input after their offsets is gone."""
        return self.request.accept_lost_input

    @property
    def discard_state(self) -> bool:
        """Drop state that the drain could not flush."""
        return self.request.discard_state

    @property
    def rewrite(self) -> StateRewrite | None:
        """How the state is written anew; None for as it is."""
        return self.request.rewrite

    @property
    def digest(self) -> str:
        rewrite = None if self.rewrite is None else asdict(self.rewrite)
        return digest_of({"verb": "whole", "asked": resolve_request(self.request).digest, "rewrite": rewrite})

    def as_deploy_request(self) -> DeployRequest:
        return self.request

    def notes(self, before: Version) -> tuple[str, ...]:
        return resolve_request(self.request).notes(before)

    def applied_to(self, before: Version, home: Store) -> Version:
        """As ``Change.applied_to``."""
        resolved = resolve_request(self.request)
        resolved.pin(home)
        return as_follower(resolved.version, before, self.rewrite)


def as_follower(version: Version, before: Version, rewrite: StateRewrite | None = None) -> Version:
    """The version as it would follow another one: in its working folder, with what belongs to the state."""
    kept = {name: before.conf[name] for name in _OF_THE_STATE if name in before.conf}
    folder = version.working_folder
    if not folder and (version.launcher and version.launcher.name) == (before.launcher and before.launcher.name):
        folder = before.working_folder
    conf = {**kept, **version.conf, **conf_of(rewrite)}
    return replace(version, conf=conf, working_folder=folder).digested()
