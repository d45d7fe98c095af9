"""AWS STS on loopback, as far as ``AssumeRole`` goes: one role, for one asker, with credentials that the test names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qsl

from airflow_streamstate.clock import SYSTEM_CLOCK
from support.loopback import QuietHandler, served

ROLE = "arn:aws:iam::123456789012:role/streams"
EXTERNAL_ID = "x-42"
ASKER_KEY, ASKER_SECRET = "asker-key", "asker-secret"


@dataclass
class StsServer:
    """What the server gives, and what it was asked for.

    Attributes:
        access_key, secret_key: of the role's credentials.
        seconds_left: until they end.
        is_refusing: the asker is no longer allowed.
        asked: the parameters of each request that was answered with credentials.
    """

    access_key: str
    secret_key: str
    seconds_left: int = 3600
    is_refusing: bool = False
    endpoint_url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)

    def answer(self, authorization: str, said: dict[str, str]) -> tuple[int, str]:
        """Status and body."""
        if f"Credential={ASKER_KEY}/" not in authorization:
            return 403, _error("InvalidClientTokenId", "The security token included in the request is invalid.")
        if self.is_refusing or said.get("RoleArn") != ROLE or said.get("ExternalId") != EXTERNAL_ID:
            return 403, _error("AccessDenied", f"User: {ASKER_KEY} is not authorized to perform: sts:AssumeRole")
        self.asked.append(said)
        ends_at = SYSTEM_CLOCK.now() + timedelta(seconds=self.seconds_left)
        return 200, (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>{self.access_key}</AccessKeyId><SecretAccessKey>{self.secret_key}</SecretAccessKey>"
            f"<SessionToken>session-{len(self.asked)}</SessionToken>"
            f"<Expiration>{ends_at:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials><AssumedRoleUser>"
            f"<Arn>{ROLE}/{said['RoleSessionName']}</Arn><AssumedRoleId>A:{said['RoleSessionName']}</AssumedRoleId>"
            "</AssumedRoleUser></AssumeRoleResult></AssumeRoleResponse>"
        )


@contextmanager
def sts_server(access_key: str, secret_key: str) -> Iterator[StsServer]:
    """A running server that gives these credentials."""
    made = StsServer(access_key, secret_key)

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            status, text = made.answer(self.headers.get("Authorization", ""), dict(parse_qsl(self.body().decode())))
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.endpoint_url = f"http://127.0.0.1:{server.server_port}"
    with served(server):
        yield made


def _error(code: str, message: str) -> str:
    return (
        '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
        f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
    )
