"""How often a request is sent, and what its outcome is."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    ObjectExistsError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.store.s3_errors import as_error
from airflow_streamstate.store.server import (
    TRIES,
    TRY_FOR_SECONDS,
    GotObject,
    RequestFailure,
    ServerAnswer,
    ServerClient,
    ServerStore,
    TooLarge,
    WriteCondition,
    read_body,
    until_answered,
    until_known,
)
from support.fake_clock import FakeClock

BUSY, LOST, AWAY, HELD, NO = (
    RequestFailure(ServerAnswer.BUSY, 409, "ConditionalRequestConflict", ""),
    RequestFailure(ServerAnswer.UNKNOWN, 500, "InternalError", ""),
    RequestFailure(ServerAnswer.NOT_DONE, 503, "SlowDown", ""),
    RequestFailure(ServerAnswer.PRECONDITION, 412, "PreconditionFailed", ""),
    RequestFailure(ServerAnswer.REFUSED, 403, "AccessDenied", ""),
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


@pytest.mark.parametrize("failure", [HELD, NO, RequestFailure(ServerAnswer.ABSENT, 404, "NoSuchKey", "")])
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
    """After doubt comes a reading: landed, not landed, or another's. (Law 8)"""
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
    """Without doubt the end of the tries means that nothing was changed, and a refusal is reported at once."""
    with pytest.raises(UnavailableError):
        until_known(FakeClock(), sending(*[AWAY] * TRIES), lambda _: "never asked", CONFLICT, report)
    with pytest.raises(ConflictError):
        until_known(FakeClock(), sending(*[BUSY] * TRIES), lambda _: None, CONFLICT, report)
    with pytest.raises(OutcomeUnknownError):
        until_known(FakeClock(), sending(LOST, NO), lambda _: None, CONFLICT, report)


def test_an_answer_without_a_body_is_mute() -> None:
    """Its status alone does not show what is missing; no connection is no answer at all."""
    assert RequestFailure(ServerAnswer.ABSENT, 404, "404", "").is_mute
    assert not RequestFailure(ServerAnswer.ABSENT, 404, "NoSuchKey", "").is_mute
    assert not RequestFailure(ServerAnswer.NOT_DONE, 0, "", "").is_mute


class Server(ServerClient):
    """One object, and what goes wrong: each write lands or not, and is answered or not."""

    uri = "s3://b"

    def __init__(self, *answers: tuple[bool, RequestFailure | None]) -> None:
        self.there: GotObject | None = None
        self.answers = list(answers)
        self.clock = FakeClock()

    def get(self, name: str, most_bytes: int | None = None) -> GotObject:
        if self.there is None:
            raise RequestFailure(ServerAnswer.ABSENT, 404, "NoSuchKey", "")
        return self.there

    def put(self, name: str, body: bytes, write_id: str, condition: WriteCondition | None) -> str:
        version = f"v-{write_id}"
        self._answer(lambda: setattr(self, "there", GotObject(body, version, write_id)))
        return version

    def delete(self, name: str, version: str | None) -> None:
        self._answer(lambda: setattr(self, "there", None))

    def _answer(self, land: Callable[[], None]) -> None:
        lands, failure = self.answers.pop(0) if self.answers else (True, None)
        if lands:
            land()
        if failure is not None:
            raise failure

    def error_of(self, failure: RequestFailure, act: str, key: str, doubtful: bool) -> StreamStateError:
        return OutcomeUnknownError("lost", key=key) if doubtful else UnavailableError("away", key=key)

    def _unasked(self, *_: object, **__: object) -> Any:
        raise NotImplementedError

    copy = describe = folders = for_spark = get_range = head = objects = put_parts = _unasked


@pytest.mark.parametrize("prefix", ["/p", "p/", "p//q", "../p", "p\0"])
def test_a_prefix_that_no_key_can_begin_with_is_refused(prefix: str) -> None:
    """A store of other keys than it declares cannot be opened."""
    with pytest.raises(InvalidRequestError):
        ServerStore(Server(), prefix)


def test_a_create_whose_answer_was_lost_is_known_by_its_id() -> None:
    """It landed, and the try after it is refused by it: written, by us. (Law 8)"""
    server = Server((True, LOST), (False, HELD))
    version = ServerStore(server).create("k", b"1")
    assert server.there == GotObject(b"1", version, version[2:])


def test_equal_bytes_of_another_are_not_ours() -> None:
    """A create that did not land alongside another's with the same bytes is lost. (Law 8)"""
    server = Server((False, LOST))
    server.there = GotObject(b"1", "v", "another")
    with pytest.raises(ObjectExistsError):
        ServerStore(server).create("k", b"1")


def test_a_replace_that_others_overtook_is_unknown() -> None:
    """It may have landed and been written over: neither done nor refused. (Law 8)"""
    server = Server((False, LOST))
    server.there = GotObject(b"9", "newer", "another")
    with pytest.raises(OutcomeUnknownError):
        ServerStore(server).replace("k", b"2", "older")


def test_a_delete_of_another_version_is_refused() -> None:
    """After a lost answer the object is looked at: absence is success, another version is not ours to delete."""
    server = Server((True, LOST), *[(False, LOST)] * 9)
    server.there = GotObject(b"1", "v", "ours")
    ServerStore(server).delete("k", "v")
    assert server.there is None
    server.there = GotObject(b"9", "newer", "another")
    with pytest.raises(VersionConflictError):
        ServerStore(server).delete("k", "older")


class Drips:
    """A body of which one byte comes in each second; a read waits for all that it asks for."""

    def __init__(self, clock: FakeClock, size_bytes: int) -> None:
        self.clock, self.left_bytes = clock, size_bytes

    def read(self, most_bytes: int) -> bytes:
        """As of a connection."""
        found = b"x" * min(most_bytes, self.left_bytes)
        self.left_bytes -= len(found)
        self.clock.advance(float(len(found)))
        return found


def test_a_body_that_drips_is_given_up() -> None:
    """Each byte comes within the timeout of a connection; all of them would take days (Law 6)."""
    clock = FakeClock()
    with pytest.raises(RequestFailure) as failed:
        read_body(Drips(clock, 1 << 20).read, 1 << 20, clock)
    assert (failed.value.answer, failed.value.code) == (ServerAnswer.UNKNOWN, "SlowBody")
    assert clock.monotonic_seconds() < 100


def test_a_body_that_comes_is_read_whole() -> None:
    """In pieces of any size."""
    body = io.BytesIO(bytes(range(256)) * 20_000)
    assert read_body(body.read, len(body.getvalue()), FakeClock()) == body.getvalue()


@pytest.mark.parametrize("announced", [11, 0])
def test_a_body_that_is_too_large_is_not_read(announced: int) -> None:
    """Nor one that has more than the server has announced."""
    with pytest.raises(TooLarge):
        read_body(io.BytesIO(b"x" * 11).read, announced, FakeClock(), 10)
