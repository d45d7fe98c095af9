"""The settings of agent and controllers, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.fields import Seconds

COMMAND_POLL_SECONDS_ON_DISK = 0.2
COMMAND_POLL_SECONDS_ON_S3 = 2.0


OFF: frozenset[str] = frozenset({"snapshot_every_seconds"})
"""Settings that are off unless they are given."""
OF_NO_NUMBER: frozenset[str] = frozenset({"keep_running", "commit_offsets_to_group"})
MOST_GROUP_CHARACTERS = 249
_LEAST_SECONDS, _MOST_SECONDS = 0.01, 86_400
_RANGES: Mapping[str, tuple[float, float]] = {
    "clock_skew_seconds": (0, _MOST_SECONDS),
    "snapshot_every_seconds": (1, 31 * _MOST_SECONDS),
    "fetch_batch_bytes": (1 << 10, 1 << 30),
}
"""Settings with another range than the two above."""


@dataclass(frozen=True)
class AgentSettings:
    """How the agent of a deployment, and the controllers that ask it, behave; recorded in ``spec.json``, so that every
    attempt and every caller has the same.

    Attributes:
        command_poll_seconds: how often the agent looks for commands (0.2 on disk, 2 on S3).
        heartbeat_seconds: how often it writes its heartbeat and checks whether it was replaced.
        lost_after_seconds: an older heartbeat means silent, where the launcher says that the driver lives, and lost
            where it cannot be asked; at least twice ``heartbeat_seconds``.
        exit_grace_seconds: how long a script may run on after a complete stop or drain before the driver ends it.
        snapshot_ttl_seconds: the agent ignores a request for a snapshot that is older than this.
        snapshot_request_timeout_seconds: a waiting caller repeats a request that was not accepted for so long.
        clock_skew_seconds: how far in the future a request may be dated.
        snapshot_every_seconds: how often the agent takes a snapshot by itself; None: never.
        fetch_batch_bytes: how much of a snapshot is fetched at a time.
        fetch_timeout_seconds: a fetch that a store does not answer for so long is given up.
        keep_running: a stream whose sources are all finished waits for new parts instead of draining itself.
        commit_offsets_to_group: a consumer group of Kafka to which the offsets of each batch are committed, so
            that Kafka's own tools show the lag; nothing reads them back. "" for none.
    """

    command_poll_seconds: Seconds = COMMAND_POLL_SECONDS_ON_DISK
    heartbeat_seconds: Seconds = 10.0
    lost_after_seconds: Seconds = 60.0
    exit_grace_seconds: Seconds = 30.0
    snapshot_ttl_seconds: Seconds = 300.0
    snapshot_request_timeout_seconds: Seconds = 15.0
    clock_skew_seconds: Seconds = 30.0
    snapshot_every_seconds: Seconds | None = None
    fetch_batch_bytes: int = 4 << 20
    fetch_timeout_seconds: Seconds = 5.0
    keep_running: bool = False
    commit_offsets_to_group: str = ""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least, most = _RANGES.get(name, (_LEAST_SECONDS, _MOST_SECONDS))
            if (value is None and name in OFF) or name in OF_NO_NUMBER:
                continue
            if value is None or not least <= value <= most:
                unit = "bytes" if name.endswith("_bytes") else "seconds"
                raise InvalidRequestError(
                    "this setting is out of its range",
                    setting=name,
                    value=value,
                    next_step=f"Use a number of {unit} between {least} and {most}.",
                )

        group = self.commit_offsets_to_group
        if len(group) > MOST_GROUP_CHARACTERS or not group.isprintable() or group != group.strip():
            raise InvalidRequestError(
                "this is no name of a consumer group",
                commit_offsets_to_group=group[:60],
                next_step=f"Use at most {MOST_GROUP_CHARACTERS} printable characters, of a group of the stream's own.",
            )

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
