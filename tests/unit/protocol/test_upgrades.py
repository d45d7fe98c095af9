"""Upgrades on the wire: what is asked for, the steps, and what people say."""

from __future__ import annotations

from typing import get_args

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.protocol.codec import from_json, to_json
from airflow_streamstate.protocol.upgrades import (
    BEFORE_THE_STOP,
    OVER,
    Approval,
    Cancellation,
    HealthyWhen,
    Phase,
    Upgrade,
    UpgradeStep,
)
from support.examples import example


@pytest.mark.parametrize("mode", ["Fresh", "", None, "seed", "latest"])
def test_no_other_mode_is_understood(mode: object) -> None:
    """An unknown mode never becomes an empty start (Laws 5 and 7)."""
    raw = {**to_json(example(Upgrade)), "mode": mode}
    with pytest.raises(MalformedMessageError, match="mode"):
        from_json(raw, key="k", expected=Upgrade)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (UpgradeStep, "phase", "half-way"),
        (UpgradeStep, "way", "backward"),
        (Cancellation, "after_stop", "leave"),
        (Approval, "is_approved", "perhaps"),
        (Upgrade, "asked", "downgrade"),
    ],
)
def test_a_word_that_is_not_known_is_refused(kind: type, field: str, value: object) -> None:
    """What a later release says in other words is never guessed (Law 7)."""
    raw = {**to_json(example(kind)), field: value}
    with pytest.raises(MalformedMessageError, match=field):
        from_json(raw, key="k", expected=kind)


def test_nothing_is_risked_by_default() -> None:
    """A drain, a hazard, lost state, input or rows are only ever asked for by name (Laws 5 and 16)."""
    asked = {"kind", "protocol", "stream_id", "upgrade_id", "asked", "old_deployment_id", "mode", "request_id",
             "request_digest", "requested_by", "reason", "created_at", "write_id"}  # fmt: skip
    raw = {name: value for name, value in to_json(example(Upgrade)).items() if name in asked}
    upgrade = from_json(raw, key="k", expected=Upgrade)
    risks = (upgrade.allow_drain, upgrade.accept_hazards, upgrade.discard_state, upgrade.accepts_duplicates)
    assert risks == (False, False, False, False)
    assert (upgrade.fresh_queries, upgrade.accept_lost_input, upgrade.way) == ((), (), None)
    assert (upgrade.runs_batches, upgrade.healthy_when) == (True, HealthyWhen())


def test_a_phase_is_over_or_before_the_stop_or_neither() -> None:
    """None is both, and each is a phase."""
    assert OVER.isdisjoint(BEFORE_THE_STOP)
    assert set(get_args(Phase)) > OVER | BEFORE_THE_STOP
