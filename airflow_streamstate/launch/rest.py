"""One request to a server of a cluster, bounded in every way: its time as a whole, the size of its answer, its target.

A server may be slow on purpose, or be another one than it was. So a request ends at a time whatever arrives, nothing is
read beyond a limit, and no redirect is followed: it would lead to a server that nobody has named.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.processes import ended_after

ANSWER_SECONDS = 5.0
"""For one answer, from the search for its server to its last byte."""
ANSWER_BYTES = 4 << 20
SHOWN_CHARACTERS = 300
LEFT_AT_MOST = 32
"""Threads that wait for servers which never come to an end."""
Result = TypeVar("Result")
_LEFT: set[threading.Thread] = set()
_LEFT_GUARD = threading.Lock()


def shown(text: object, characters: int = SHOWN_CHARACTERS) -> str:
    """The text of a server as people may see it: one line, without control characters, of limited length."""
    line = " ".join(str(text)[: 8 * characters].split())
    return "".join(one if one.isprintable() else "?" for one in line)[:characters]


class TooSlowError(Exception):
    """A call has not come back in time; it may still do what it was to do."""


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """What a call returns, of a client that has no limit for a whole answer.

    The call runs in a thread, which is left alone after that time: until its server ends it. So it must do no harm
    later. Where too many were left so, nothing new is called.

    Raises:
        TooSlowError: it took longer, or earlier ones hang.
    """
    with _LEFT_GUARD:
        _LEFT.difference_update([thread for thread in _LEFT if not thread.is_alive()])
        if len(_LEFT) >= LEFT_AT_MOST:
            raise TooSlowError(f"{LEFT_AT_MOST} earlier requests have no whole answer yet")
    done: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if done:
        return done[0]
    with _LEFT_GUARD:
        _LEFT.add(thread)
    raise TooSlowError(f"no whole answer within {seconds:g} s")


class Until:
    """The time by which the requests of one call must end.

    Args:
        seconds: from now on, for all of them.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.monotonic_seconds() + seconds
        self._seconds = seconds

    def left(self, most: float) -> float:
        """The seconds that are left, at most ``most``.

        Raises:
            UnavailableError: none.
        """
        left = self._end - self._clock.monotonic_seconds()
        if left <= 0:
            raise UnavailableError("the servers of this driver are too slow", reason=f"over {self._seconds:g} s in all")
        return min(left, most)


@dataclass(frozen=True)
class RestAnswer:
    """What a server answered.

    Attributes:
        seconds: the server's own time, as a number of seconds since 1970; 0.0 if it does not report it.
    """

    status: int
    body: bytes
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        """The JSON object in it; {} for anything else."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def ask(
    method: str,
    url: str,
    body: Mapping[str, object] | None = None,
    *,
    seconds: float = ANSWER_SECONDS,
    at_most: int = ANSWER_BYTES,
    refuses: Callable[[str], bool] | None = None,
) -> RestAnswer:
    """One request; an answer with any status is one, a redirect too.

    Args:
        url: http or https; its server comes from the caller's own configuration.
        seconds: for all of it.
        at_most: bytes of the answer.
        refuses: whether an IP address must not be reached; None for any.

    Raises:
        UnavailableError: no answer, none in time, or one that is too large.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json, text/plain", **({"Content-Type": "application/json"} if data else {})}
    cut = _Cut(refuses or (lambda _: False))
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), urllib.request.UnknownHandler(), _Http(cut), _Https(cut)):
        opener.add_handler(handler)
    reason = ""
    try:
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - of those two handlers
        with _cut_off(cut, seconds), opener.open(request, timeout=seconds) as reply:
            found = reply.read(at_most + 1)
            status, date = int(reply.status), reply.headers.get("Date")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = _words(error)
    if cut.is_over:  # else a connection that was cut off would look as one that has ended
        reason = f"no whole answer within {seconds:g} s"
    if reason:
        raise UnavailableError("a server of the cluster does not answer", url=url, reason=reason)
    if len(found) > at_most:
        raise UnavailableError(
            "the answer of a server is too large", url=url, reason=f"it has more than {at_most} bytes"
        )
    return RestAnswer(status, found, _time(date))


class _Cut:
    """Ends the connections that it has made, once their time is up.

    Args:
        refuses: as of ``ask``.
    """

    def __init__(self, refuses: Callable[[str], bool]) -> None:
        self._refuses = refuses
        self._guard = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_over = False

    def connect(
        self, address: tuple[str, int], timeout: float, source_address: tuple[str, int] | None = None
    ) -> socket.socket:
        """As ``socket.create_connection``, which would take the whole time for each address of a name."""
        del source_address
        error: OSError = OSError("no such host")
        for family, kind, protocol, _, target in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            if self._refuses(str(target[0])):
                error = OSError(f"{target[0]} is no address of a node")
                continue
            one = socket.socket(family, kind, protocol)
            try:
                one.settimeout(timeout)
                self._keep(one)
                one.connect(target)
            except OSError as failed:
                one.close()
                error = failed
                continue
            return one
        raise error

    def end(self) -> None:
        with self._guard:
            self.is_over = True
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._guard:
            for one in self._sockets:
                one.close()
            self._sockets.clear()

    def _keep(self, one: socket.socket) -> None:
        with self._guard:
            if self.is_over:
                raise TimeoutError
            self._sockets.append(one.dup())  # a copy: TLS takes the socket itself away


@contextmanager
def _cut_off(cut: _Cut, seconds: float) -> Iterator[None]:
    try:
        with ended_after(seconds, cut.end):
            yield
    finally:
        cut.close()


class _Http(urllib.request.HTTPHandler):
    def __init__(self, cut: _Cut) -> None:
        super().__init__()
        self._cut = cut

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connecting(http.client.HTTPConnection, self._cut), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, cut: _Cut) -> None:
        super().__init__()
        self._cut = cut

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connecting(http.client.HTTPSConnection, self._cut), request)


def _connecting(kind: Any, cut: _Cut) -> Any:
    """Makes connections of this kind that the cut ends."""

    def new(*arguments: Any, **options: Any) -> Any:
        made = kind(*arguments, **options)
        made._create_connection = cut.connect
        return made

    return new


def _time(date: str | None) -> float:
    try:
        return email.utils.parsedate_to_datetime(date or "").timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    return shown(getattr(reason, "strerror", None) or reason or type(error).__name__).lower()
