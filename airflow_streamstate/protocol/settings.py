"""The settings of the agent and the controllers: one table, with their defaults and what each is for."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_streamstate.errors import InvalidRequestError

COMMAND_POLL_SECONDS_ON_DISK = 0.2
COMMAND_POLL_SECONDS_ON_S3 = 2.0


@dataclass(frozen=True)
class AgentSettings:
    """How the agent in a driver behaves; recorded in ``spec.json``, so every attempt has the same.

    Attributes:
        command_poll_seconds: how often the agent looks for commands (0.2 on disk, 2 on S3).
        heartbeat_seconds: how often it writes its sign of life and looks whether it was replaced.
        lost_after_seconds: a heartbeat older than this, from a driver that nobody can ask about, means lost.
        exit_grace_seconds: how long a script may run on after a complete stop or drain before it is ended.
    """

    command_poll_seconds: float = COMMAND_POLL_SECONDS_ON_DISK
    heartbeat_seconds: float = 10.0
    lost_after_seconds: float = 60.0
    exit_grace_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("command_poll_seconds", "heartbeat_seconds", "lost_after_seconds", "exit_grace_seconds"):
            if not 0.01 <= getattr(self, name) <= 86_400:
                raise InvalidRequestError(
                    "this setting is out of its range",
                    setting=name,
                    value=getattr(self, name),
                    next_step="Use a number of seconds between 0.01 and 86400.",
                )


def default_settings(home_uri: str) -> AgentSettings:
    """The defaults for a home: polling is dear on S3 and cheap on disk."""
    on_s3 = home_uri.startswith(("s3:", "gs:", "az:", "abfs:", "abfss:"))
    return AgentSettings(command_poll_seconds=COMMAND_POLL_SECONDS_ON_S3 if on_s3 else COMMAND_POLL_SECONDS_ON_DISK)
