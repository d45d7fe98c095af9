"""Which version of the protocol is spoken."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import UnsupportedVersionError
from airflow_streamstate.protocol import codec
from airflow_streamstate.protocol.codec import version_for


@pytest.mark.parametrize(
    ("agent", "own", "spoken"),
    [((1, 1), (1, 1), 1), ((1, 3), (1, 5), 3), ((2, 9), (1, 5), 5), ((5, 5), (1, 5), 5), ((1, 5), (5, 8), 5)],
)
def test_the_highest_that_both_know_is_spoken(
    agent: tuple[int, int], own: tuple[int, int], spoken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new controller drains a months-old job by a command that its agent understands."""
    monkeypatch.setattr(codec, "OLDEST_PROTOCOL", own[0])
    monkeypatch.setattr(codec, "NEWEST_PROTOCOL", own[1])
    assert version_for(*agent) == spoken


@pytest.mark.parametrize(("agent", "own"), [((2, 3), (4, 6)), ((7, 9), (4, 6))])
def test_ranges_that_do_not_meet_are_refused(
    agent: tuple[int, int], own: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written that the agent would have to refuse; the error shows both ranges (Law 7)."""
    monkeypatch.setattr(codec, "OLDEST_PROTOCOL", own[0])
    monkeypatch.setattr(codec, "NEWEST_PROTOCOL", own[1])
    with pytest.raises(UnsupportedVersionError) as caught:
        version_for(*agent)
    assert caught.value.context == {
        "agent_protocols": f"{agent[0]}..{agent[1]}", "own_protocols": f"{own[0]}..{own[1]}"
    }  # fmt: skip
