"""How often a request is sent, and what its outcome is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_streamstate.errors import ConflictError, OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.store.s3_errors import as_error
from airflow_streamstate.store.server import TRIES, TRY_FOR_SECONDS, Answer, RequestFailure, until_answered, until_known
from support.fake_clock import FakeClock

BUSY, LOST, AWAY, HELD, NO = (
    RequestFailure(Answer.BUSY, 409, "ConditionalRequestConflict", ""),
    RequestFailure(Answer.UNKNOWN, 500, "InternalError", ""),
    RequestFailure(Answer.NOT_DONE, 503, "SlowDown", ""),
    RequestFailure(Answer.PRECONDITION, 412, "PreconditionFailed", ""),
    RequestFailure(Answer.REFUSED, 403, "AccessDenied", ""),
)
CONFLICT = ConflictError("taken")


def sending(*failures: RequestFailure, clock: FakeClock | None = None, seconds: float = 0.0) -> Callable[[], str]:
    """A request that fails like this, one after the other, and then succeeds."""
    left = list(failures)

    def send() -> str:
        if clock is not None:
            clock.advance(seconds)
        if left:
            raise left.pop(0)
        return "v"

    return send


def report(failure: RequestFailure, doubtful: bool) -> StreamStateError:
    return as_error(failure, action="PutObject", bucket="b", key="k", doubtful=doubtful)


@pytest.mark.parametrize("failure", [BUSY, LOST, AWAY])
def test_what_passes_is_sent_again_with_growing_pauses(failure: RequestFailure) -> None:
    """A request that may be sent twice is, with pauses that double, and a bounded number of times. (Law 6)"""
    clock = FakeClock()
    assert until_answered(clock, sending(*[failure] * (TRIES - 1))) == "v"
    assert clock.slept_seconds == pytest.approx([0.2, 0.4, 0.8])
    with pytest.raises(RequestFailure):
        until_answered(clock, sending(*[failure] * TRIES))


@pytest.mark.parametrize("failure", [HELD, NO, RequestFailure(Answer.ABSENT, 404, "NoSuchKey", "")])
def test_an_answer_that_lasts_is_taken_at_once(failure: RequestFailure) -> None:
    """Absent, refused and not held are answers: nothing is sent again."""
    clock = FakeClock()
    with pytest.raises(RequestFailure):
        until_answered(clock, sending(failure))
    assert clock.slept_seconds == []


def test_a_silent_server_is_given_up_by_the_clock() -> None:
    """Tries that each take their whole timeout do not add up to minutes. (Law 6)"""
    clock = FakeClock()
    with pytest.raises(RequestFailure):
        until_answered(clock, sending(*[LOST] * 9, clock=clock, seconds=20.0))
    assert clock.monotonic_seconds() < TRY_FOR_SECONDS + 20.0


def test_a_write_that_was_lost_is_read_back_before_another_try() -> None:
    """After doubt comes a look: landed, not landed, or another's. (Law 8)"""
    assert until_known(FakeClock(), sending(LOST), lambda _: "back", CONFLICT, report) == "back"
    assert until_known(FakeClock(), sending(LOST), lambda _: None, CONFLICT, report) == "v"

    def others(doubtful: bool) -> str | None:
        assert doubtful
        raise CONFLICT

    with pytest.raises(ConflictError):
        until_known(FakeClock(), sending(LOST), others, CONFLICT, report)


def test_a_condition_that_did_not_hold_is_a_conflict_only_without_doubt() -> None:
    """412 at the first try is another's; after a lost reply it may be the echo of one's own write. (Law 8)"""
    with pytest.raises(ConflictError):
        until_known(FakeClock(), sending(HELD), lambda _: "never asked", CONFLICT, report)
    answers = iter([None, "landed after all"])
    assert until_known(FakeClock(), sending(LOST, HELD), lambda _: next(answers), CONFLICT, report) == (
        "landed after all"
    )


def test_what_cannot_be_read_back_is_unknown() -> None:
    """A write that was lost and cannot be looked at is neither won nor lost. (Law 8)"""

    def unreadable(doubtful: bool) -> str | None:
        raise UnavailableError("no answer")

    with pytest.raises(OutcomeUnknownError):
        until_known(FakeClock(), sending(LOST), unreadable, CONFLICT, report)
    with pytest.raises(UnavailableError):
        until_known(FakeClock(), sending(BUSY), unreadable, CONFLICT, report)


def test_a_write_that_was_only_turned_away_is_not_done() -> None:
    """Without doubt the end of the tries means that nothing was changed, and a refusal is told at once."""
    with pytest.raises(UnavailableError):
        until_known(FakeClock(), sending(*[AWAY] * TRIES), lambda _: "never asked", CONFLICT, report)
    with pytest.raises(ConflictError):
        until_known(FakeClock(), sending(*[BUSY] * TRIES), lambda _: None, CONFLICT, report)
    with pytest.raises(OutcomeUnknownError):
        until_known(FakeClock(), sending(LOST, NO), lambda _: None, CONFLICT, report)
