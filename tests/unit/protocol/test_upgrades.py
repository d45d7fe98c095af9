"""Upgrades on the wire: what is asked for, the steps, and their texts."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.protocol.codec import from_json, to_json
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.protocol.terms.version import HandoverTerms
from airflow_streamstate.protocol.upgrades import (
    BEFORE_THE_STOP,
    OVER,
    Approval,
    Cancellation,
    Decision,
    DriverChoice,
    Phase,
    Upgrade,
    UpgradeStep,
)
from support.examples import example

NEEDED = {
    "kind", "protocol", "stream_id", "upgrade_id", "old_deployment_id", "target", "request_id", "request_digest",
    "requested_by", "reason", "created_at", "write_id",
}  # fmt: skip


@pytest.mark.parametrize("mode", ["Fresh", "", None, "seed", "latest"])
def test_no_other_mode_is_understood(mode: object) -> None:
    """An unknown mode never becomes an empty start (Laws 5 and 7)."""
    raw = {**to_json(example(Upgrade)), "upgrade_terms": {"mode": mode}}
    with pytest.raises(MalformedMessageError, match="mode"):
        from_json(raw, key="k", expected=Upgrade)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (UpgradeStep, "phase", "half-way"),
        (UpgradeStep, "decision", {"kind": "HalfWay"}),
        (UpgradeStep, "decision", {"rehearsal_id": "r-0b8e3c525f0e-0001"}),
        (Cancellation, "after_stop", "leave"),
        (Approval, "is_approved", "perhaps"),
        (Upgrade, "if_abandoned", "leave"),
    ],
)
def test_a_word_that_is_not_known_is_refused(kind: type, field: str, value: object) -> None:
    """What a later release reports in other words is never guessed (Law 7)."""
    raw = {**to_json(example(kind)), field: value}
    with pytest.raises(MalformedMessageError, match=field):
        from_json(raw, key="k", expected=kind)


def test_nothing_is_risked_by_default() -> None:
    """A drain, a hazard, lost state, input or rows are only ever asked for by name (Laws 5 and 16)."""
    for asked in ({"upgrade_terms": {}}, {"rollback_terms": {}}):
        bare = {name: value for name, value in to_json(example(Upgrade)).items() if name in NEEDED}
        upgrade = from_json({**bare, **asked}, key="k", expected=Upgrade)
        back = upgrade.terms_of_return
        assert (upgrade.terms.allow_drain, upgrade.terms.accept_hazards, back.accept_duplicates) == (
            False,
            False,
            False,
        )
        assert upgrade.handover == HandoverTerms()
        assert (back.accept_lost_input, back.strategy) == ((), None)
        assert upgrade.terms == UpgradeTerms()


@pytest.mark.parametrize("terms", [{}, {"upgrade_terms": {}, "rollback_terms": {}}])
def test_a_record_is_of_an_upgrade_or_of_a_rollback(terms: dict[str, object]) -> None:
    """What it is decides what is done to the stream."""
    bare = {name: value for name, value in to_json(example(Upgrade)).items() if name in NEEDED}
    with pytest.raises(MalformedMessageError, match="either"):
        from_json({**bare, **terms}, key="k", expected=Upgrade)


@pytest.mark.parametrize(
    ("name", "value"), [("mode", "later"), ("healthy_batches", 0), ("rehearse_rows", 0), ("undo_command", ["a\x00"])]
)
def test_terms_that_no_request_could_have_are_malformed(name: str, value: object) -> None:
    """A record is checked by the same declaration as a request."""
    raw = {**to_json(example(Upgrade)), "upgrade_terms": {name: value}}
    with pytest.raises(MalformedMessageError, match=name):
        from_json(raw, key="k", expected=Upgrade)


def test_a_phase_is_over_or_before_the_stop_or_neither() -> None:
    """None is both, and each is a phase."""
    assert OVER.isdisjoint(BEFORE_THE_STOP)
    assert set(get_args(Phase)) > OVER | BEFORE_THE_STOP


@pytest.mark.parametrize("kind", [*get_args(Decision), *get_args(DriverChoice)])
def test_a_decision_is_whole_and_never_changed(kind: type) -> None:
    """Each field has to be given, so that none keeps a value of an earlier step unseen."""
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for field in dataclasses.fields(kind):
        assert (field.default, field.default_factory) == (dataclasses.MISSING, dataclasses.MISSING), field.name


@pytest.mark.parametrize(
    "decision",
    [
        {"kind": "Returning", "way": "undo"},
        {"kind": "Returning", "way": "undo", "driver": None},
        {"kind": "Returning", "way": "undo", "driver": "waits"},
        {"kind": "Returning", "way": "undo", "driver": {"kind": "DriverDreams", "why": ""}},
        {"kind": "Returning", "way": "undo", "driver": {"kind": "NewGivenUp", "deployment_id": "d-0004"}},
        {"kind": ["Returning"]},
        "Returning",
        [],
    ],
)
def test_a_decision_that_is_not_whole_is_malformed(decision: object) -> None:
    """Nothing is filled in for what is missing (Law 7)."""
    raw = {**to_json(example(UpgradeStep)), "decision": decision}
    with pytest.raises(MalformedMessageError, match=r"driver|decision"):
        from_json(raw, key="k", expected=UpgradeStep)
