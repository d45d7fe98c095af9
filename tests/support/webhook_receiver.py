"""A real HTTP server on loopback that gets alerts: it answers, refuses, or hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """Gets alerts.

    Attributes:
        statuses: of the next answers; 200 after them.
        hangs: no answer until ``released``.
    """

    server: ThreadingHTTPServer
    got: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    hangs: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/T000/B000/hunter22?token=hunter33"


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A server, which is ended afterwards."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if made.hangs:
                made.released.wait(60)
                return
            status = made.statuses.pop(0) if made.statuses else 200
            made.headers.append({**dict(self.headers), "path": self.path})
            if status == 200:
                made.got.append(json.loads(body))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = Receiver(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield made
    finally:
        made.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
