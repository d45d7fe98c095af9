"""Servers that do what no server of a cluster does: they send a byte now and then, never end, or lead elsewhere."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from support.loopback import QuietHandler, served

Act = Callable[[QuietHandler], None]


class HostileServer:
    """A server on loopback.

    Attributes:
        paths: what it was asked for, without queries.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.paths: list[str] = []

    @property
    def address(self) -> str:
        """Its ``host:port``."""
        return self.url.removeprefix("http://")


@contextmanager
def hostile_server(act: Act) -> Iterator[HostileServer]:
    """A server that does this for every request."""

    class Handler(QuietHandler):
        wbufsize = 0

        def do_GET(self) -> None:
            found.paths.append(self.path.partition("?")[0])
            with contextlib.suppress(OSError):
                act(self)

        def do_POST(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.do_GET()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = HostileServer(f"http://127.0.0.1:{server.server_address[1]}")
    with served(server):
        yield found


def answering(bodies: Mapping[str, object], otherwise: Act | None = None) -> Act:
    """Answers by JSON, by the end of the path; 404, or ``otherwise``, for any other."""

    def act(handler: QuietHandler) -> None:
        path = handler.path.partition("?")[0]
        found = next((body for end, body in bodies.items() if path.endswith(end)), None)
        if found is None and otherwise is not None:
            otherwise(handler)
            return
        body = json.dumps(found).encode()
        handler.send_response(404 if found is None else 200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return act


def redirecting(url: str) -> Act:
    """Leads to another server."""

    def act(handler: QuietHandler) -> None:
        handler.send_response(307)
        handler.send_header("Location", f"{url}{handler.path}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return act


def dripping(handler: QuietHandler) -> None:
    """Sends a byte now and then, for ever."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        threading.Event().wait(0.05)


def dripping_head(handler: QuietHandler) -> None:
    """Sends even its first line so."""
    while True:
        handler.wfile.write(b"H")
        threading.Event().wait(0.05)


def endless(handler: QuietHandler) -> None:
    """Sends as much as is taken, for ever."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * (1 << 16))
