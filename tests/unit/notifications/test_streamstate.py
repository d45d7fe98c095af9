"""Alerts by Airflow's notifiers, over drivers that run no Spark."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseNotifier

from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.notifications.streamstate import StreamNotifier
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


class Noting(BaseNotifier):
    """Records what it received."""

    template_fields = ("text",)

    def __init__(self, told: list[str], text: str = "{{ alert.kind }} {{ alert.stream_id }} {{ alert.rule }}") -> None:
        super().__init__()
        self.told, self.text = told, text

    def notify(self, context: Any) -> None:
        self.told.append(self.text)


class Raising(BaseNotifier):
    """Cannot notify anyone."""

    def notify(self, context: Any) -> None:
        raise ConnectionError(f"no way to tell {context['alert']['rule']}")


@pytest.fixture
def failed(named: NamedHome) -> NamedHome:
    """Two streams whose drivers have failed."""
    for stream_id in ("flights", "trains"):
        attempt = named.stream(stream_id).deploy()
        attempt.claim()
        attempt.started()
        attempt.failed("ValueError: boom")
    return named


def test_every_notifier_is_told_each_alert_once(failed: NamedHome, context: MakeContext) -> None:
    """With the fields of the alert in its templates; called again, it reports nothing."""
    told: list[str] = []
    notifier = StreamNotifier(notifiers=[Noting(told), Noting(told, "{{ alert.text }}")])
    notifier(context())
    assert told == [
        "raised flights driver_dead",
        "attempt 1 is failed: ValueError: boom",
        "raised trains driver_dead",
        "attempt 1 is failed: ValueError: boom",
    ]
    notifier(context())
    StreamNotifier(notifiers=[Noting(told)])(context())
    assert len(told) == 4
    StreamNotifier(notifiers=[Noting(told)], audience="night shift", stream_ids="flights")(context())
    assert told[4:] == ["raised flights driver_dead"]


def test_a_notifier_that_raises_stops_nothing(failed: NamedHome, context: MakeContext) -> None:
    """The others are sent; the task continues, and reports how often it failed."""
    told: list[str] = []
    found = StreamNotifier(notifiers=[Raising(), Noting(told)]).looked(context())
    assert told == ["raised flights driver_dead", "raised trains driver_dead"]
    assert found["failed_notifications"] == 2
    assert [one["stream_id"] for one in found["told"]] == ["flights", "trains"]
    assert found["standing"] == {"flights": ["driver_dead"], "trains": ["driver_dead"]}


def test_an_alert_that_no_notifier_told_fails_the_task_and_is_told_by_the_next_try(
    failed: NamedHome, context: MakeContext
) -> None:
    """Each alert is tried, and what one of several notifiers has sent is not repeated."""
    told: list[str] = []
    with pytest.raises(UnavailableError, match=r"no notifier has reported some alerts\. alerts=2 told=0"):
        StreamNotifier(notifiers=[Raising()])(context())
    found = StreamNotifier(notifiers=[Noting(told), Raising()]).looked(context())
    assert told == ["raised flights driver_dead", "raised trains driver_dead"]
    assert [one["message_id"] for one in found["told"]] == [f"{one['alert_id']}/raised" for one in found["told"]]
    assert StreamNotifier(notifiers=[Noting(told)]).looked(context())["told"] == []


def test_a_callback_of_a_task_looks_at_its_stream_alone(failed: NamedHome, context: MakeContext) -> None:
    """Its fields are templates of the task's context."""
    told: list[str] = []
    notifier = StreamNotifier(notifiers=[Noting(told)], stream_ids="{{ ti.stream }}")
    notifier(context(stream="trains"))
    assert told == ["raised trains driver_dead"]


def test_what_it_sees_is_in_airflows_metrics(
    failed: NamedHome, context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names that the page lists."""
    sent: list[tuple[str, Any, dict[str, str]]] = []
    stats = "airflow.providers.common.compat.sdk.Stats"
    monkeypatch.setattr(f"{stats}.incr", lambda name, tags: sent.append((name, 1, tags)))
    monkeypatch.setattr(f"{stats}.gauge", lambda name, value, tags: sent.append((name, value, tags)))
    StreamNotifier(stream_ids=["flights"])(context())
    assert ("streamstate.alert.raised", 1, {"stream_id": "flights", "rule": "driver_dead"}) in sent
    assert ("streamstate.stream.up", 0.0, {"stream_id": "flights"}) in sent


def test_a_mail_is_sent_by_the_notifier_of_the_smtp_provider(
    failed: NamedHome, context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one, to a real server on loopback."""
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    with receiving_mail() as (port, mails):
        monkeypatch.setenv(
            "AIRFLOW_CONN_SMTP_DEFAULT",
            f'{{"conn_type": "smtp", "host": "127.0.0.1", "port": {port},'
            ' "extra": {"disable_ssl": true, "disable_tls": true, "from_email": "streams@example.org"}}',
        )
        mail = SmtpNotifier(
            to="ada@example.org",
            subject="{{ alert.stream_id }} {{ alert.rule }}",
            html_content="{{ alert.text | e }}",
            smtp_conn_id="smtp_default",
        )
        found = StreamNotifier(notifiers=[mail]).looked(context())
    assert found["failed_notifications"] == 0
    assert [line for mail in mails for line in mail.splitlines() if line.startswith("Subject: ")] == [
        "Subject: flights driver_dead", "Subject: trains driver_dead",
    ]  # fmt: skip


@contextmanager
def receiving_mail() -> Iterator[tuple[int, list[str]]]:
    """An SMTP server that keeps what it gets."""
    mails: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            for line in self.rfile:
                word = line.split(b":")[0].strip().upper()
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 well\r\n")
                if word == b"QUIT":
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1], mails
        finally:
            server.shutdown()
            thread.join()
