"""What a store of GCS or Azure Blob is without a server; its promises are held in ``tests/contract/store``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import pytest

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.store.obstore import COPY_SECONDS, ObstoreClient
from airflow_streamstate.store.server import Answer, Found, RequestFailure, ServerStore
from airflow_streamstate.store.transfer import put_pieces
from support.fake_clock import FakeClock
from support.object_stores import object_client

NOWHERE = "http://127.0.0.1:9"


def store_at(prefix: str, clock: Clock) -> ServerStore:
    return ServerStore(object_client("gcs", NOWHERE, clock), prefix)


def test_the_uri_is_bucket_and_prefix() -> None:
    """The place, and nothing of options or credentials."""
    assert store_at("", FakeClock()).uri == "gs://streams"
    assert store_at("p/q", FakeClock()).uri == "gs://streams/p/q"


@pytest.mark.parametrize("prefix", ["/p", "p/", "p//q", "../p", "p\0"])
def test_a_prefix_that_no_key_can_begin_with_is_refused(prefix: str) -> None:
    """A store of other keys than it says cannot be opened."""
    with pytest.raises(InvalidRequestError):
        store_at(prefix, FakeClock())


def test_a_server_that_cannot_be_reached_is_unavailable() -> None:
    """Within the tries, with the place and what to do; nothing is called absent or unknown. (Law 6)"""
    store = store_at("p", FakeClock())
    for act in (lambda: store.get("a"), lambda: store.create("a", b""), lambda: list(store.list_objects(""))):
        with pytest.raises(UnavailableError) as caught:
            act()
        assert caught.value.context["place"] == "gs://streams"
        assert caught.value.next_step


class _SlowCopies(ObstoreClient):
    """A server that answers a copy before it has made it, as Azure may."""

    service, uri = "Azure Blob", "az://streams"

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.clock = FakeClock()

    def make_ready(self) -> None: ...

    def version_in(self, answer: object) -> str:
        return ""

    condition_of = found_in = request_for = for_spark = version_in  # type: ignore[assignment]

    def order_copy(self, source: str, target: str) -> None: ...

    def look(self, name: str) -> Found:
        self.looks -= 1
        return Found(1, "v", "md5:00", None, is_copied=self.looks <= 0)


def test_a_copy_is_made_when_the_server_says_so() -> None:
    """Not when it took the order; and one that never ends is unknown, after a time. (Laws 6 and 8)"""
    client = _SlowCopies(looks=4)
    store = ServerStore(client)
    store.copy("a", "b")
    assert client.looks == 0
    endless = _SlowCopies(looks=10_000)
    clock = endless.clock
    begun = clock.monotonic_seconds()
    with pytest.raises(OutcomeUnknownError):
        ServerStore(endless).copy("a", "b")
    assert clock.monotonic_seconds() - begun < COPY_SECONDS * 1.1


class _Parts(_SlowCopies):
    """A server that takes parts, and fails where it is told to.

    Args:
        failures: one for each try; None for none.
        taken: how many parts are taken before a failure; None for all.
    """

    def __init__(self, failures: list[RequestFailure | None], taken: int | None = None) -> None:
        super().__init__(looks=0)
        self.failures, self.taken = failures, taken
        self.write_ids: list[str] = []
        self.there = Found(3, "v-there", "etag:there", None, write_id="another's")

    def send_parts(self, name: str, parts: Iterable[bytes], write_id: str, part_bytes: int) -> str:
        self.write_ids.append(write_id)
        failure = self.failures.pop(0)
        if failure is None or self.taken is None:
            assert [len(part) for part in parts] == [10, 10, 5]
        else:
            list(islice(parts, self.taken))
        if failure is not None:
            raise failure
        return "v-put"

    def look(self, name: str) -> Found:
        return self.there


AWAY = RequestFailure(Answer.UNKNOWN, 500, "InternalError", "struck")
DENIED = RequestFailure(Answer.REFUSED, 403, "AccessDenied", "struck")


def put_25(client: _Parts) -> str:
    store = ServerStore(client, upload_part_bytes=10)
    return put_pieces(store, "a", iter([b"x" * 4, b"y" * 21]), 25)


class TestParts:
    def test_it_is_tried_again_before_its_first_byte(self) -> None:
        """Not after it: what was taken cannot be given twice."""
        client = _Parts([AWAY, AWAY, None], taken=0)
        assert put_25(client) == "v-put"
        assert len(client.write_ids) == 3
        begun = _Parts([AWAY, None], taken=1)
        with pytest.raises(UnavailableError):  # not completed: nobody sees it
            put_25(begun)
        assert len(begun.write_ids) == 1
        with pytest.raises(InvalidRequestError):
            put_25(_Parts([DENIED], taken=0))

    @pytest.mark.parametrize("failure", [AWAY, DENIED, RequestFailure(Answer.ABSENT, 404, "NoSuchUpload", "over")])
    def test_a_completion_whose_answer_was_lost_is_read_back(self, failure: RequestFailure) -> None:
        """By the id of the put; another's object leaves a doubt, but where it was refused. (Law 8)"""
        with pytest.raises(InvalidRequestError if failure is DENIED else OutcomeUnknownError):
            put_25(_Parts([failure]))

        class Mine(_Parts):
            """The put has landed."""

            def look(self, name: str) -> Found:
                return replace(self.there, write_id=self.write_ids[-1])

        assert put_25(Mine([failure])) == "v-there"
