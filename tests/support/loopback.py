"""Servers on loopback: a free port, and a quiet HTTP/1.1 handler that runs in a thread until the block ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def free_port() -> int:
    """A free port; another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class QuietHandler(BaseHTTPRequestHandler):
    """A handler without a log, for which a connection that was cut is no error."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave together: no delayed acknowledgement between them
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def body(self) -> bytes:
        """The body of the request, chunked or not."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return body


@contextmanager
def served(server: ThreadingHTTPServer) -> Iterator[None]:
    """The server answers until the block ends."""
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
