"""What a store of GCS or Azure Blob is without a server; its promises are held in ``tests/contract/store``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import islice

import pytest

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.store.obstore import (
    COPY_SECONDS,
    ObstoreClient,
    ask,
    check_endpoint,
    client_options,
    moment_in,
    obstore_errors,
)
from airflow_streamstate.store.server import FoundObject, RequestFailure, ServerAnswer, ServerStore
from airflow_streamstate.store.transfer import put_pieces
from support.fake_clock import FakeClock
from support.object_stores import object_client

NOWHERE = "http://127.0.0.1:9"


def store_at(prefix: str, clock: Clock) -> ServerStore:
    return ServerStore(object_client("gcs", NOWHERE, clock), prefix)


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

    def look(self, name: str) -> FoundObject:
        self.looks -= 1
        return FoundObject(1, "v", "md5:00", None, is_copied=self.looks <= 0)


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
    """A server that takes parts, and fails where it is configured to.

    Args:
        failures: one for each try; None: no failure.
        taken: how many parts are taken before a failure; None for all.
    """

    def __init__(self, failures: list[RequestFailure | None], taken: int | None = None) -> None:
        super().__init__(looks=0)
        self.failures, self.taken = failures, taken
        self.write_ids: list[str] = []
        self.there = FoundObject(3, "v-there", "etag:there", None, write_id="another's")

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

    def look(self, name: str) -> FoundObject:
        return self.there


AWAY = RequestFailure(ServerAnswer.UNKNOWN, 500, "InternalError", "struck")
DENIED = RequestFailure(ServerAnswer.REFUSED, 403, "AccessDenied", "struck")


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
        with pytest.raises(UnavailableError):  # not completed: no reader sees it
            put_25(begun)
        assert len(begun.write_ids) == 1
        with pytest.raises(InvalidRequestError):
            put_25(_Parts([DENIED], taken=0))

    @pytest.mark.parametrize(
        "failure", [AWAY, DENIED, RequestFailure(ServerAnswer.ABSENT, 404, "NoSuchUpload", "over")]
    )
    def test_a_completion_whose_answer_was_lost_is_read_back(self, failure: RequestFailure) -> None:
        """By the id of the put; another's object leaves a doubt, but where it was refused. (Law 8)"""
        with pytest.raises(InvalidRequestError if failure is DENIED else OutcomeUnknownError):
            put_25(_Parts([failure]))

        class Mine(_Parts):
            """The put has landed."""

            def look(self, name: str) -> FoundObject:
                return replace(self.there, write_id=self.write_ids[-1])

        assert put_25(Mine([failure])) == "v-there"


def test_the_time_of_an_object_is_aware() -> None:
    """As every server reports it; a header that is no time is none."""
    assert moment_in({"last-modified": "Sun, 22 Nov 2026 18:32:36 GMT"}) == datetime(
        2026, 11, 22, 18, 32, 36, tzinfo=timezone.utc
    )
    assert moment_in({"last-modified": "soon"}) is None
    assert moment_in({}) is None


def test_every_request_is_bounded() -> None:
    """Plain HTTP only where the endpoint names it; a silent server ends a request. (Law 6)"""
    assert client_options(None, 5, 60)["allow_http"] is False
    options = client_options("http://127.0.0.1:1", 5, 60)
    assert options["allow_http"] is True
    assert options["read_timeout"] == timedelta(seconds=60)


def test_an_endpoint_holds_no_password() -> None:
    """It would be in errors and in Spark's settings."""
    check_endpoint("https://host/a@b", has_token=True)
    with pytest.raises(RequestFailure) as caught:
        check_endpoint("https://user:hidden@host", has_token=True)
    assert caught.value.answer is ServerAnswer.REFUSED
    assert "hidden" not in str(caught.value)


def test_errors_of_the_library_do_not_leave_the_package() -> None:
    """Absence and refusal come as Python's own errors, and are translated as well."""
    with pytest.raises(RequestFailure) as caught, obstore_errors():
        raise FileNotFoundError("Object at location a not found")
    assert caught.value.answer is ServerAnswer.ABSENT


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_DELETE(self) -> None:
        if self.path.startswith("/silent"):
            self.close_connection = True
            return
        held = self.headers.get("If-Match") == '"old"'
        body = b"<Error><Code>ConditionNotMet</Code><Message>It differs.</Message></Error>" if held else b""
        self.send_response(412 if held else 204)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path.startswith("/there") else 404)
        self.send_header("ETag", '"v"')
        self.send_header("x-ms-error-code", "BlobNotFound")
        self.end_headers()


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_success_gives_the_headers(address: str) -> None:
    """Their names in lower case, whatever the server writes."""
    assert ask("HEAD", f"{address}/there", {}, 5)["etag"] == '"v"'
    assert ask("DELETE", f"{address}/there", {"If-Match": '"new"'}, 5) is not None


@pytest.mark.parametrize(
    ("method", "path", "headers", "answer", "code", "reason"),
    [
        (
            "DELETE",
            "/there?sig=hidden",
            {"If-Match": '"old"'},
            ServerAnswer.PRECONDITION,
            "ConditionNotMet",
            "It differs.",
        ),
        ("HEAD", "/gone?sig=hidden", {}, ServerAnswer.ABSENT, "BlobNotFound", "Not Found"),
    ],
)
def test_an_answer_that_is_no_success_is_classified(
    address: str, method: str, path: str, headers: dict[str, str], answer: ServerAnswer, code: str, reason: str
) -> None:
    """By its status and code; an answer to HEAD, which has no body, by the code among its headers."""
    with pytest.raises(RequestFailure) as caught:
        ask(method, address + path, headers, 5)
    assert (caught.value.answer, caught.value.code, caught.value.reason) == (answer, code, reason)


def test_a_broken_request_may_have_landed(address: str) -> None:
    """No answer is unknown; no connection is not done. (Law 8)"""
    with pytest.raises(RequestFailure) as lost:
        ask("DELETE", f"{address}/silent?sig=hidden", {}, 5)
    assert lost.value.answer is ServerAnswer.UNKNOWN
    with pytest.raises(RequestFailure) as away:
        ask("DELETE", "http://127.0.0.1:9/x?sig=hidden", {}, 5)
    assert away.value.answer is ServerAnswer.NOT_DONE
    assert "hidden" not in lost.value.reason + away.value.reason
