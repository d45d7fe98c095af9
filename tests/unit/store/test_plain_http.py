"""One plain request, and what it comes to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from airflow_streamstate.store.obstore import ask
from airflow_streamstate.store.server import Answer, RequestFailure


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

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
        ("DELETE", "/there?sig=hidden", {"If-Match": '"old"'}, Answer.PRECONDITION, "ConditionNotMet", "It differs."),
        ("HEAD", "/gone?sig=hidden", {}, Answer.ABSENT, "BlobNotFound", "Not Found"),
    ],
)
def test_an_answer_that_is_no_success_is_classified(
    address: str, method: str, path: str, headers: dict[str, str], answer: Answer, code: str, reason: str
) -> None:
    """By its status and code; an answer to HEAD, which has no body, by the code among its headers."""
    with pytest.raises(RequestFailure) as caught:
        ask(method, address + path, headers, 5)
    assert (caught.value.answer, caught.value.code, caught.value.reason) == (answer, code, reason)


def test_a_broken_request_may_have_landed(address: str) -> None:
    """No answer is unknown; no connection is not done. (Law 8)"""
    with pytest.raises(RequestFailure) as lost:
        ask("DELETE", f"{address}/silent?sig=hidden", {}, 5)
    assert lost.value.answer is Answer.UNKNOWN
    with pytest.raises(RequestFailure) as away:
        ask("DELETE", "http://127.0.0.1:9/x?sig=hidden", {}, 5)
    assert away.value.answer is Answer.NOT_DONE
    assert "hidden" not in lost.value.reason + away.value.reason
