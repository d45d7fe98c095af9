"""What ObjectStore is without a server; its promises are held in ``tests/contract/store``."""

from __future__ import annotations

import pytest

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.store.answers import Answer, RequestFailure
from airflow_streamstate.store.objects import COPY_SECONDS, ObjectStore
from airflow_streamstate.store.objects_client import Found, ObjectsClient
from support.fake_clock import FakeClock
from support.object_stores import object_client

NOWHERE = "http://127.0.0.1:9"


def store_at(prefix: str, clock: Clock) -> ObjectStore:
    return ObjectStore(lambda: object_client("gcs", NOWHERE), "gs://streams", prefix, clock=clock)


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


class _SlowCopies(ObjectsClient):
    """A server that answers a copy before it has made it, as Azure may."""

    service, uri = "Azure Blob", "az://streams"

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def make_ready(self) -> None: ...

    def version_in(self, answer: object) -> str:
        return ""

    condition_of = found_in = request_for = for_spark = version_in  # type: ignore[assignment]

    def copy(self, source: str, target: str) -> None: ...

    def head(self, name: str) -> Found:
        self.looks -= 1
        return Found(1, "v", "md5:00", None, is_copied=self.looks <= 0)


def test_a_copy_is_made_when_the_server_says_so() -> None:
    """Not when it took the order; and one that never ends is unknown, after a time. (Laws 6 and 8)"""
    client = _SlowCopies(looks=4)
    store = ObjectStore(lambda: client, "az://streams", clock=FakeClock())
    store.copy("a", "b")
    assert client.looks == 0
    clock = FakeClock()
    endless = ObjectStore(lambda: _SlowCopies(looks=10_000), "az://streams", clock=clock)
    begun = clock.monotonic_seconds()
    with pytest.raises(OutcomeUnknownError):
        endless.copy("a", "b")
    assert clock.monotonic_seconds() - begun < COPY_SECONDS * 1.1


def test_wrong_options_are_refused_when_the_store_is_opened() -> None:
    """Not at the first request."""

    def make() -> ObjectsClient:
        raise RequestFailure(Answer.REFUSED, 0, "NoAccount", "no account")

    with pytest.raises(InvalidRequestError):
        ObjectStore(make, "az://streams")
