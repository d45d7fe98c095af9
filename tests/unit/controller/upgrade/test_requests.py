"""What can be asked for of an upgrade, and what cannot."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest, UpgradeRequest
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.terms.order import RollbackTerms, UpgradeTerms


@pytest.mark.parametrize(
    "asked",
    [
        {"mode": "empty"},
        {"mode": ""},
        {"mode": "restore", "allow_drain": True},
        {"mode": "drain", "allow_drain": True},
        {"healthy_batches": 0},
        {"healthy_deadline_seconds": 0.0},
        {"healthy_deadline_seconds": float("nan")},
        {"roll_back_if_slower": 1.0},
        {"roll_back_if_slower": float("nan")},
        {"roll_back_if_slower": 2_000.0},
        {"rehearsal_deadline_seconds": -1.0},
        {"rehearsal_deadline_seconds": float("inf")},
    ],
)
def test_what_cannot_be_is_refused_by_name(asked: dict[str, Any]) -> None:
    """Before anything is looked at."""
    with pytest.raises(InvalidRequestError):
        UpgradeRequest(change_request("orders"), UpgradeTerms(**asked))


@pytest.mark.parametrize(
    "asked",
    [
        {"strategy": "resume"},
        {"strategy": "handover"},
        {"strategy": "back"},
        {"strategy": "forward", "accept_duplicates": True},
        {"healthy_batches": 0},
        {"rehearsal_deadline_seconds": 0.0},
    ],
)
def test_a_rollback_that_cannot_be_is_refused_by_name(asked: dict[str, Any]) -> None:
    """The ways that are found by themselves cannot be asked for."""
    with pytest.raises(InvalidRequestError):
        RollbackRequest("orders", RollbackTerms(**asked))


@pytest.mark.parametrize(
    "words",
    [("undo.sh", "--password=hunter2"), ("undo.sh", "--token", "hunter2"), ("undo.sh", "--key=env://UNDO_KEY")],
)
def test_a_secret_is_never_recorded_with_the_command_that_undoes(words: tuple[str, ...]) -> None:
    """It is run as the home has it: a reference would reach it unresolved, a password would be stored there."""
    for make in (
        lambda: UpgradeRequest(change_request("orders"), UpgradeTerms(undo_command=words)),
        lambda: RollbackRequest("orders", RollbackTerms(undo_command=words)),
    ):
        with pytest.raises(InvalidRequestError, match="secret") as caught:
            make()
        assert "hunter2" not in str(caught.value)


def test_a_driver_for_the_way_back_is_a_warm_one() -> None:
    """A request that wants it and no warm driver contradicts itself."""
    with pytest.raises(InvalidRequestError, match="warm is off"):
        UpgradeRequest(change_request("orders"), UpgradeTerms(warm=False, warm_return=True))


def test_a_digest_is_over_all_that_is_asked_for() -> None:
    """One id means one request."""
    change = change_request("orders", conf={"spark.a": "1"})
    plain = UpgradeRequest(change)
    others = [
        UpgradeRequest(change, UpgradeTerms(mode="drain")),
        UpgradeRequest(change, UpgradeTerms(allow_drain=True)),
        UpgradeRequest(change, UpgradeTerms(needs_approval=True)),
        UpgradeRequest(change, UpgradeTerms(healthy_batches=5)),
        UpgradeRequest(change, UpgradeTerms(roll_back_if_slower=2.0)),
        UpgradeRequest(change, UpgradeTerms(roll_back_if_slower=3.0)),
        UpgradeRequest(change, UpgradeTerms(undo_command=("undo",))),
        UpgradeRequest(change, UpgradeTerms(warm_return=True)),
        UpgradeRequest(change_request("orders", conf={"spark.a": "2"})),
    ]
    assert UpgradeRequest(change_request("orders", conf={"spark.a": "1"})).digest == plain.digest
    assert len({plain.digest, *(other.digest for other in others)}) == len(others) + 1
    backs = [
        RollbackRequest("orders"),
        RollbackRequest("orders", RollbackTerms(strategy="forward")),
        RollbackRequest("orders", RollbackTerms(strategy="undo")),
    ]
    assert len({back.digest for back in backs}) == 3
    one, other = (RollbackTerms(accept_lost_input=names) for names in (("a", "b"), ("b", "a")))
    assert RollbackRequest("orders", one).digest == RollbackRequest("orders", other).digest
