"""A proxy before an S3 server, plain HTTP on both sides, that counts requests and injects faults.

It is between our store and the server, or between Spark's S3A and the server: signatures hold, because the request
is forwarded as it came. ``hooks`` are called with each request just before that, in the thread of that request: what
they do comes between the look and the act of the caller.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import ThreadingHTTPServer
from typing import Protocol

from support.loopback import QuietHandler, served
from support.s3_requests import S3Request

FORWARD_SECONDS = 300
HOLD_SECONDS = 20


@dataclass
class Strike:
    """What the proxy does to a request.

    Attributes:
        forward: whether the server gets the request before the answer below is given.
        status: what is answered; 0 for no answer: the connection is closed.
        code: S3's error code in that answer.
        path_part: only those with this in their path.
        hold: instead of an answer, silence until this event is set.
        reset: if there is no answer, the connection is reset instead of closed.
        cut: the server's own answer is given, and ends in the middle.
        delay_seconds: how long the server's own answer is kept back; only with ``forward`` and nothing else.
    """

    method: str
    forward: bool
    status: int = 0
    code: str = ""
    times: int = 1
    path_part: str = ""
    hold: threading.Event | None = None
    reset: bool = False
    cut: bool = False
    delay_seconds: float = 0.0


KINDS = (
    Strike("", forward=False, status=503, code="SlowDown"),
    Strike("", forward=False, status=503, code="ServiceUnavailable"),
    Strike("", forward=False, status=500, code="InternalError"),
    Strike("", forward=True, status=500, code="InternalError"),
    Strike("", forward=False, reset=True),
    Strike("", forward=True, reset=True),
    Strike("", forward=True, cut=True),
    Strike("", forward=True, delay_seconds=0.02),
)
"""Every way in which a request goes wrong: turned away, broken before or after it landed, reset, lost, cut, slow."""


@dataclass
class Weather:
    """Faults by chance, the same for the same seed and order of requests.

    Attributes:
        share: how many of all requests are struck, from 0 to 1.
        mercy: none is struck twice in a row: what a client tries again then arrives.
    """

    share: float
    seed: int = 0
    kinds: tuple[Strike, ...] = KINDS
    mercy: bool = False
    struck: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._last: set[tuple[str, str]] = set()

    def strike_for(self, request: S3Request) -> Strike | None:
        """What happens to this request; the caller holds a lock."""
        place = (request.method, request.path)
        if (self.mercy and place in self._last) or self._chance.random() >= self.share:
            self._last.discard(place)
            return None
        self._last.add(place)
        strike = self._chance.choice(self.kinds)
        self.struck[request.operation] += 1
        return replace(strike, method=request.method)


class Switch(Protocol):
    """Answers whether something is so just now."""

    def is_set(self) -> bool:
        """Whether it is."""


@dataclass
class StrikingProxy:
    """A proxy between a client and an S3 server.

    Attributes:
        server: where it forwards to: host and port.
        strikes: what is done to the requests to come; each is used up.
        weather: what is done to the others by chance.
        is_out: while it is set, every connection is reset and nothing is forwarded.
        outages: the same for requests by their numbers, from 0.
        hooks: called with each request just before it is forwarded.
        requests: (method, path) of all requests so far.
        creates: paths of the writes that were made under the condition that nothing is there.
        answered_bytes: bytes of the bodies of all answers.
    """

    endpoint_url: str
    server: str
    strikes: list[Strike] = field(default_factory=list)
    weather: Weather | None = None
    is_out: Switch = field(default_factory=threading.Event)
    outages: list[range] = field(default_factory=list)
    hooks: list[Callable[[S3Request], None]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    seen: list[S3Request] = field(default_factory=list)
    creates: list[str] = field(default_factory=list)
    answered_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_closing: threading.Event = field(default_factory=threading.Event)

    def count(self, method: str) -> int:
        """How many requests of this method came."""
        return sum(1 for seen, _ in self.requests if seen == method)

    @property
    def operations(self) -> Counter[str]:
        """How many requests came, by S3's names of them."""
        return Counter(request.operation for request in self.seen)

    @property
    def actions(self) -> set[str]:
        """What a policy would have had to allow."""
        return {action for request in self.seen for action in request.actions}

    @property
    def bytes_through(self) -> int:
        """Bytes of all bodies that came and went."""
        return self.answered_bytes + sum(request.body_bytes for request in self.seen)

    def forget(self) -> None:
        """Count from here."""
        with self.lock:
            self.requests.clear()
            self.seen.clear()
            self.creates.clear()
            self.answered_bytes = 0

    def strike_for(self, request: S3Request) -> Strike | None:
        """Note the request; gives what to do to it."""
        with self.lock:
            self.requests.append((request.method, request.path))
            self.seen.append(request)
            if request.method == "PUT" and request.headers.get("if-none-match") == "*":
                self.creates.append(request.path)
            number = len(self.seen) - 1
            if self.is_out.is_set() or any(number in outage for outage in self.outages):
                return Strike(request.method, forward=False, reset=True)
            for strike in self.strikes:
                if strike.method == request.method and strike.path_part in request.path and strike.times > 0:
                    strike.times -= 1
                    return strike
            return self.weather.strike_for(request) if self.weather else None


@contextmanager
def striking_proxy(server_url: str) -> Iterator[StrikingProxy]:
    """A running proxy before the server."""
    http_server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    proxy = StrikingProxy(f"http://127.0.0.1:{http_server.server_port}", server_url.removeprefix("http://"))
    http_server.proxy = proxy  # type: ignore[attr-defined]
    with served(http_server):
        try:
            yield proxy
        finally:
            proxy.is_closing.set()


class _Handler(QuietHandler):
    def handle_expect_100(self) -> bool:
        go_on = super().handle_expect_100()
        self.wfile.flush()
        return go_on

    def handle_any(self) -> None:
        proxy: StrikingProxy = self.server.proxy  # type: ignore[attr-defined]
        body = self.body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = S3Request(self.command, self.path, headers, len(body))
        strike = proxy.strike_for(request)
        if strike is None or strike.forward:
            for hook in proxy.hooks:
                hook(request)
            answer = self._forward(body)
        if strike is None:
            self._answer(*answer)
        elif strike.hold is not None:
            strike.hold.wait(HOLD_SECONDS)
            self.close_connection = True
        elif strike.status:
            text = f"<?xml version='1.0'?><Error><Code>{strike.code}</Code><Message>struck</Message></Error>"
            self._answer(strike.status, [("Content-Type", "application/xml")], text.encode())
        elif strike.delay_seconds:
            proxy.is_closing.wait(strike.delay_seconds)
            self._answer(*answer)
        elif strike.cut and self.command != "HEAD" and len(answer[2]) > 1:
            self._answer(*answer, cut=True)
        else:
            self._hang_up(reset=strike.reset)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815 - the base class's names

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        proxy: StrikingProxy = self.server.proxy  # type: ignore[attr-defined]
        connection = http.client.HTTPConnection(proxy.server, timeout=FORWARD_SECONDS)
        try:
            ours = ("expect", "connection", "transfer-encoding", "content-length")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ours}
            if body or self.command in ("PUT", "POST"):
                headers["Content-Length"] = str(len(body))
            connection.request(self.command, self.path, body=body or None, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False) -> None:
        proxy: StrikingProxy = self.server.proxy  # type: ignore[attr-defined]
        with proxy.lock:
            proxy.answered_bytes += len(body)
        with suppress(ConnectionError):
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = {name.lower(): value for name, value in headers}.get("content-length")
            if status != 204:
                self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            self.wfile.flush()
        self.close_connection = self.close_connection or cut

    def _hang_up(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:
            with suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
