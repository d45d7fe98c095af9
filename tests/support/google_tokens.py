"""A service account, and the server that gives or refuses its tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


@contextmanager
def tokens(status: int) -> Iterator[tuple[str, list[str]]]:
    """A server that gives out tokens, or does not; the grants that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            good = {"access_token": f"token-{len(asked)}", "expires_in": 3600, "token_type": "Bearer"}
            body = json.dumps(good if status == 200 else {"error": "invalid_grant"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token", asked
    server.shutdown()
    thread.join(10)
    server.server_close()


def service_account(path: Path) -> Path:
    """Write the file of a service account; ``point`` sets where its tokens come from."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    about = {
        "type": "service_account",
        "project_id": "p",
        "private_key": pem.decode(),
        "client_email": "streams@p.iam.gserviceaccount.com",
        "token_uri": "http://127.0.0.1:9/token",
    }
    path.write_text(json.dumps(about))
    return path


def point(account: Path, token_uri: str) -> None:
    """Let its tokens come from there."""
    account.write_text(json.dumps({**json.loads(account.read_text()), "token_uri": token_uri}))
