"""The settings of agent and controllers, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Seconds
from airflow_streamstate.protocol.terms.declaration import check_terms, term, terms_of

COMMAND_POLL_SECONDS_ON_DISK = 0.2
COMMAND_POLL_SECONDS_ON_S3 = 2.0


MOST_GROUP_CHARACTERS = 249
_MOST_SECONDS = 86_400.0
_IN_SHELL = "`--setting NAME=VALUE` sets it"
_SECONDS: Any = {"least": 0.01, "most": _MOST_SECONDS, "in_shell": _IN_SHELL}


@dataclass(frozen=True)
class AgentSettings:
    """How the agent of a deployment, and the controllers that ask it, behave; recorded in ``spec.json``, so that every
    attempt and every caller has the same.

    Raises:
        InvalidRequestError: a setting is out of its range.
    """

    command_poll_seconds: Seconds = term(
        COMMAND_POLL_SECONDS_ON_DISK,
        help="how often the agent polls for commands; by default 0.2 on disk, 2 on object stores",
        **_SECONDS,
    )
    heartbeat_seconds: Seconds = term(
        10.0, help="how often it writes its heartbeat, and checks whether it was replaced", **_SECONDS
    )
    lost_after_seconds: Seconds = term(
        60.0,
        help="a driver with an older heartbeat is silent, if its launcher reports that it lives, and lost if the"
        " launcher cannot be asked; at least twice {heartbeat_seconds}",
        **_SECONDS,
    )
    exit_grace_seconds: Seconds = term(
        30.0, help="how long a script may run after a complete stop or drain, before its driver ends it", **_SECONDS
    )
    snapshot_ttl_seconds: Seconds = term(
        300.0, help="the agent ignores a request for a snapshot that is older", **_SECONDS
    )
    snapshot_request_timeout_seconds: Seconds = term(
        15.0, help="a waiting caller repeats a request that was not accepted for this long", **_SECONDS
    )
    clock_skew_seconds: Seconds = term(
        30.0, help="how far in the future a request may be dated", least=0, most=_MOST_SECONDS, in_shell=_IN_SHELL
    )
    snapshot_every_seconds: Seconds | None = term(
        None,
        help="how often the agent takes a snapshot by itself; by default never",
        least=1,
        most=31 * _MOST_SECONDS,
        in_shell=_IN_SHELL,
        names={"files": "snapshots.every_seconds"},
    )
    fetch_batch_bytes: int = term(
        4 << 20,
        help="how many bytes of a snapshot are fetched at a time",
        least=1 << 10,
        most=1 << 30,
        heading="Fetch",
        in_shell=_IN_SHELL,
        verbs=("mirror",),
    )
    fetch_timeout_seconds: Seconds = term(
        5.0,
        help="a fetch that a store does not answer for this long is abandoned",
        flag="--fetch-timeout-seconds",
        heading="Fetch",
        verbs=("mirror",),
        **_SECONDS,
    )
    keep_running: bool = term(
        False,
        help="wait for new parts where every part of every source is finished, instead of draining by itself",
        heading="Start",
    )
    commit_offsets_to_group: str = term(
        "",
        help="commit the offsets of each batch to this consumer group of Kafka, for Kafka's own tools; they are never"
        " read back",
        metavar="NAME",
        heading="Start",
    )

    def __post_init__(self) -> None:
        check_terms(self)
        group = self.commit_offsets_to_group
        if len(group) > MOST_GROUP_CHARACTERS or not group.isprintable() or group != group.strip():
            raise InvalidRequestError(
                "this is no name of a consumer group",
                commit_offsets_to_group=group[:60],
                next_step=f"Use at most {MOST_GROUP_CHARACTERS} printable characters, of a group of the stream's own.",
            )

    def changed(self, given: Mapping[str, Any]) -> AgentSettings:
        """The settings with these values in place of their own.

        Raises:
            InvalidRequestError: there is no such setting, or one is out of its range.
        """
        known = [one.name for one in terms_of(AgentSettings)]
        if unknown := sorted(set(given) - set(known)):
            raise InvalidRequestError(
                "the agent has no such setting",
                name=str(unknown[0])[:60],
                next_step=f"There are {', '.join(known)}.",
            )
        return replace(self, **given)

    def fetching(self, batch_bytes: int | None = None, timeout_seconds: float | None = None) -> AgentSettings:
        """The same settings with the given ways to fetch.

        Raises:
            InvalidRequestError: out of its range.
        """
        return replace(
            self,
            fetch_batch_bytes=self.fetch_batch_bytes if batch_bytes is None else batch_bytes,
            fetch_timeout_seconds=self.fetch_timeout_seconds if timeout_seconds is None else timeout_seconds,
        )


def default_settings(home_uri: str) -> AgentSettings:
    """The defaults for a home: polling is expensive on an object store and cheap on disk."""
    on_s3 = home_uri.startswith(("s3:", "gs:", "az:", "abfs:", "abfss:"))
    return AgentSettings(command_poll_seconds=COMMAND_POLL_SECONDS_ON_S3 if on_s3 else COMMAND_POLL_SECONDS_ON_DISK)
