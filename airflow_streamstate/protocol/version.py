"""The version of the protocol (not of the package), and which range of it this package reads and writes."""

from __future__ import annotations

from airflow_streamstate.errors import UnsupportedVersionError

OLDEST_PROTOCOL = 1
NEWEST_PROTOCOL = 1
PLACED_PROTOCOL = 2
"""Of manifests alone whose files lie elsewhere than earlier releases look for them: those refuse them by name."""


def version_for(claim_oldest: int, claim_newest: int) -> int:
    """The highest version that both this package and the claiming agent know.

    A new controller can so drain a months-old deployment in words that its agent understands.

    Args:
        claim_oldest: oldest version the agent's claim states.
        claim_newest: newest version the agent's claim states.

    Raises:
        UnsupportedVersionError: the two ranges do not meet.
    """
    highest = min(claim_newest, NEWEST_PROTOCOL)
    if highest < max(claim_oldest, OLDEST_PROTOCOL):
        raise UnsupportedVersionError(
            "this deployment's agent and this controller know no common protocol version",
            agent_protocols=f"{claim_oldest}..{claim_newest}",
            own_protocols=f"{OLDEST_PROTOCOL}..{NEWEST_PROTOCOL}",
            next_step="Use a release of airflow-streamstate whose protocols include one of the agent's.",
        )
    return highest
