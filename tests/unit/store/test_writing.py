"""The outcome of each write, as the store is told it; on real servers in ``tests/contract/store``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_streamstate.errors import (
    ObjectExistsError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.store.answers import Answer, RequestFailure
from airflow_streamstate.store.interface import StoredObject
from airflow_streamstate.store.writing import Writes
from support.fake_clock import FakeClock

LOST = RequestFailure(Answer.UNKNOWN, 500, "InternalError", "")
HELD = RequestFailure(Answer.PRECONDITION, 412, "PreconditionFailed", "")


class Server:
    """One object, and what goes wrong: each put lands or not, and is answered or not."""

    def __init__(self, *answers: tuple[bool, RequestFailure | None]) -> None:
        self.there: tuple[StoredObject, str] | None = None
        self.answers = list(answers)
        self.writes = Writes(FakeClock(), lambda _key: self.there, _report)

    def putting(self, body: bytes) -> Callable[[str], str]:
        def send(write_id: str) -> str:
            lands, failure = self.answers.pop(0) if self.answers else (True, None)
            if lands:
                self.there = (StoredObject("k", body, f"v-{write_id}"), write_id)
            if failure is not None:
                raise failure
            return f"v-{write_id}"

        return send


def _report(_act: str, key: str, _failure: RequestFailure, doubtful: bool) -> StreamStateError:
    return OutcomeUnknownError("lost", key=key) if doubtful else UnavailableError("away", key=key)


def test_a_create_whose_answer_was_lost_is_known_by_its_id() -> None:
    """It landed, and the try after it is refused by it: written, by us. (Law 8)"""
    server = Server((True, LOST), (False, HELD))
    version = server.writes.create("k", b"1", server.putting(b"1"))
    assert server.there == (StoredObject("k", b"1", version), version[2:])


def test_equal_bytes_of_another_are_not_ours() -> None:
    """A create that did not land beside another's with the same bytes is lost. (Law 8)"""
    server = Server((False, LOST))
    server.there = (StoredObject("k", b"1", "v"), "another")
    with pytest.raises(ObjectExistsError):
        server.writes.create("k", b"1", server.putting(b"1"))


def test_a_replace_that_others_overtook_is_unknown() -> None:
    """It may have landed and been written over: neither done nor refused. (Law 8)"""
    server = Server((False, LOST))
    server.there = (StoredObject("k", b"9", "newer"), "another")
    with pytest.raises(OutcomeUnknownError):
        server.writes.replace("k", b"2", "older", server.putting(b"2"))


def test_a_delete_of_another_version_is_refused() -> None:
    """After a lost answer the object is looked at: absence is success, another version is not ours to delete."""
    server = Server()

    def send() -> str:
        raise LOST

    server.writes.delete("k", "v", send)
    server.there = (StoredObject("k", b"9", "newer"), "another")
    with pytest.raises(VersionConflictError):
        server.writes.delete("k", "older", send)
