"""The version of the protocol (not of the package), and the range that this package reads and writes."""

from __future__ import annotations

from airflow_streamstate.errors import UnsupportedVersionError

OLDEST_PROTOCOL = 3
"""1 and 2 were those of checkouts before the first release, and are not read."""
NEWEST_PROTOCOL = 3


def version_for(claim_oldest: int, claim_newest: int) -> int:
    """The highest version that both this package and an agent know, from the range that its claim states.

    So a new controller can drain a months-old deployment in words that its agent understands.

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
