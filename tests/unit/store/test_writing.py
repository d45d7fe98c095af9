"""The outcome of each write, as the store is told it; on real servers in ``tests/contract/store``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_streamstate.errors import (
    ObjectExistsError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.store.server import Answer, Condition, RequestFailure, ServerClient, ServerStore
from support.fake_clock import FakeClock

LOST = RequestFailure(Answer.UNKNOWN, 500, "InternalError", "")
HELD = RequestFailure(Answer.PRECONDITION, 412, "PreconditionFailed", "")


class Server(ServerClient):
    """One object, and what goes wrong: each write lands or not, and is answered or not."""

    uri = "s3://b"

    def __init__(self, *answers: tuple[bool, RequestFailure | None]) -> None:
        self.there: tuple[bytes, str, str] | None = None
        self.answers = list(answers)
        self.clock = FakeClock()

    def get(self, name: str) -> tuple[bytes, str, str]:
        if self.there is None:
            raise RequestFailure(Answer.ABSENT, 404, "NoSuchKey", "")
        return self.there

    def put(self, name: str, body: bytes, write_id: str, condition: Condition | None) -> str:
        version = f"v-{write_id}"
        self._answer(lambda: setattr(self, "there", (body, version, write_id)))
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


def test_a_create_whose_answer_was_lost_is_known_by_its_id() -> None:
    """It landed, and the try after it is refused by it: written, by us. (Law 8)"""
    server = Server((True, LOST), (False, HELD))
    version = ServerStore(server).create("k", b"1")
    assert server.there == (b"1", version, version[2:])


def test_equal_bytes_of_another_are_not_ours() -> None:
    """A create that did not land beside another's with the same bytes is lost. (Law 8)"""
    server = Server((False, LOST))
    server.there = (b"1", "v", "another")
    with pytest.raises(ObjectExistsError):
        ServerStore(server).create("k", b"1")


def test_a_replace_that_others_overtook_is_unknown() -> None:
    """It may have landed and been written over: neither done nor refused. (Law 8)"""
    server = Server((False, LOST))
    server.there = (b"9", "newer", "another")
    with pytest.raises(OutcomeUnknownError):
        ServerStore(server).replace("k", b"2", "older")


def test_a_delete_of_another_version_is_refused() -> None:
    """After a lost answer the object is looked at: absence is success, another version is not ours to delete."""
    server = Server((True, LOST), *[(False, LOST)] * 9)
    server.there = (b"1", "v", "ours")
    ServerStore(server).delete("k", "v")
    assert server.there is None
    server.there = (b"9", "newer", "another")
    with pytest.raises(VersionConflictError):
        ServerStore(server).delete("k", "older")
