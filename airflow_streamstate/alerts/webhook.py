"""Alerts to a webhook: each an HTTP POST of JSON, from its own thread, so that a slow receiver delays nothing.

What could not be sent waits in a queue of bounded length, oldest first, and is sent again after 1, 2, 4 … 60 seconds.
Of the URL only scheme and host are ever shown: its path, its parameters and its user are secrets.
"""

from __future__ import annotations

import base64
import html
import http.client
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Literal

from airflow_streamstate.alerts.conditions import AlertChange
from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import InvalidRequestError

TIMEOUT_SECONDS = 10.0
MOST_QUEUED = 1_000
MOST_SECONDS_BETWEEN_TRIES = 60.0
_AGAIN = frozenset({408, 425, 429})
"""Statuses below 500 that ask for another try."""


@dataclass(frozen=True)
class WebhookUrl:
    """Where alerts are posted; shown without its secrets.

    Attributes:
        url: without a user.
        authorization: the header for its user, or "".
    """

    url: str
    authorization: str = ""

    @classmethod
    def of(cls, text: str) -> WebhookUrl:
        """The URL that a user gave.

        Raises:
            InvalidRequestError: it is not one of http or https; the error does not quote it.
        """
        try:
            parts = urllib.parse.urlsplit(text.strip())
            port = parts.port
        except ValueError:
            raise _malformed() from None
        has_blank = any(sign.isspace() or not sign.isprintable() for sign in text.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname or has_blank or not text.isascii():
            raise _malformed()
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = host if port is None else f"{host}:{port}"
        authorization = ""
        if parts.username is not None:
            user = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}")
            authorization = f"Basic {base64.b64encode(user.encode()).decode()}"
        return cls(urllib.parse.urlunsplit((parts.scheme, place, parts.path, parts.query, "")), authorization)

    def __str__(self) -> str:
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def __repr__(self) -> str:
        return f"WebhookUrl({self})"


def _malformed() -> InvalidRequestError:
    return InvalidRequestError(
        "the webhook is not a URL of http or https",
        next_step="Give the whole URL, as https://host/path, or set STREAMSTATE_WEBHOOK to it.",
    )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer as any other: what is posted goes nowhere else."""

    def redirect_request(
        self,
        req: urllib.request.Request,  # noqa: ARG002 - the interface
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: http.client.HTTPMessage,  # noqa: ARG002
        newurl: str,  # noqa: ARG002
    ) -> None:
        return None


Sent = Literal["sent", "refused", "failed"]


class Webhook:
    """Sends alerts to one URL, in their order.

    Args:
        say: gets one line on what could not be sent, without a secret of the URL.
        home_uri: named in each message.
    """

    def __init__(
        self,
        url: WebhookUrl,
        clock: Clock,
        say: Callable[[str], None],
        home_uri: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._url = url
        self._clock = clock
        self._say = say
        self._home_uri = home_uri
        self._timeout_seconds = timeout_seconds
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._queue: deque[tuple[str, bytes]] = deque(maxlen=MOST_QUEUED)
        self._unsent: tuple[str, ...] = ()
        self._change = threading.Condition()
        self._is_over = False
        self._lost = 0
        self._thread = threading.Thread(target=self._work, name="streamstate-webhook", daemon=True)
        self._thread.start()

    def tell(self, change: AlertChange) -> None:
        """Queue an alert; never waits. Where the queue is full, the oldest one is abandoned."""
        text = html.escape(change.line, quote=False)  # as Slack asks: else ``<!channel>`` in an error calls everybody
        body = json.dumps({"home": self._home_uri, **change.to_json(), "text": text}).encode()
        with self._change:
            self._lost += len(self._queue) == MOST_QUEUED
            self._queue.append((change.message_id, body))
            self._change.notify()

    def waiting(self) -> frozenset[str]:
        """The ids of the messages that were not sent, and that were not abandoned."""
        with self._change:
            return frozenset((*self._unsent, *(message_id for message_id, _ in self._queue)))

    def close(self, seconds: float) -> int:
        """Send what is queued, for ``seconds`` at most, and end; returns how many alerts were not sent."""
        with self._change:
            self._is_over = True
            self._change.notify()
        self._thread.join(seconds)
        with self._change:
            left, self._lost = len(self._queue) + self._lost, 0
            self._unsent = tuple(message_id for message_id, _ in self._queue)
            self._queue.clear()
        if left:
            self._say(f"{left} alerts were not sent to {self._url}")
        return left

    def _work(self) -> None:
        pause_seconds, told = 1.0, ""
        while True:
            with self._change:
                self._change.wait_for(lambda: self._queue or self._is_over)
                if not self._queue:
                    return
                first = self._queue[0]
            outcome, why = self._post(first[1])
            if outcome != "sent" and why != told:
                self._say(f"the webhook {self._url} has not taken an alert: {why}")
            told = "" if outcome == "sent" else why
            with self._change:
                if outcome != "failed":
                    pause_seconds = 1.0
                    if self._queue and self._queue[0] is first:  # else it was abandoned in the meantime
                        self._queue.popleft()
                    continue
                if self._is_over and pause_seconds > 1.0:
                    return  # tried once more at the end
            self._wait(pause_seconds)
            pause_seconds = min(2 * pause_seconds, MOST_SECONDS_BETWEEN_TRIES)

    def _wait(self, seconds: float) -> None:
        """Wait before another try; the end of the process cuts it short."""
        with self._change:
            self._change.wait_for(lambda: self._is_over, seconds)

    def _post(self, body: bytes) -> tuple[Sent, str]:
        headers = {"Content-Type": "application/json", "User-Agent": "airflow-streamstate"}
        if self._url.authorization:
            headers["Authorization"] = self._url.authorization
        request = urllib.request.Request(self._url.url, body, headers, method="POST")  # noqa: S310 - http or https
        try:
            with self._opener.open(request, timeout=self._timeout_seconds):
                return "sent", ""
        except urllib.error.HTTPError as error:
            with error:
                is_again = error.code >= 500 or error.code in _AGAIN
                return "failed" if is_again else "refused", f"it answered {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(cause, TimeoutError):
                return "failed", f"it did not answer within {self._timeout_seconds:g} s"
            why = cause.strerror if isinstance(cause, OSError) else None
            return "failed", why or type(cause).__name__
