"""Alerts to a real HTTP server on loopback, which answers, refuses, hangs or is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_streamstate.alerts import webhook as webhooks
from airflow_streamstate.alerts.conditions import AlertChange
from airflow_streamstate.alerts.webhook import MOST_QUEUED, Webhook, WebhookUrl
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.policies import Alert
from support.fake_clock import START_AT
from support.launches import wait_until
from support.webhook_receiver import receiving


def change(number: int = 1) -> AlertChange:
    alert = Alert(f"id-{number}", "lag", "counts", START_AT, f"query counts is {number} rows behind")
    return AlertChange("raised", "orders", "d-0001", alert, START_AT)


@contextmanager
def sending(url: str, **named: Any) -> Iterator[tuple[Webhook, list[str]]]:
    said: list[str] = []
    made = Webhook(WebhookUrl.of(url), SYSTEM_CLOCK, said.append, "file:///home", **named)
    try:
        yield made, said
    finally:
        made.close(0.01)


def test_an_alert_is_posted_as_json_with_a_line_for_people() -> None:
    """The words of the alert as ``text``, which chats show, and every fact alongside it."""
    with receiving() as receiver, sending(receiver.url) as (webhook, said):
        webhook.tell(change())
        assert webhook.close(20) == 0
    assert receiver.got == [
        {
            "text": "orders: lag: query counts is 1 rows behind", "home": "file:///home", "kind": "raised",
            "message_id": "id-1/raised",
            "alert_id": "id-1", "stream_id": "orders", "deployment_id": "d-0001",
            "owner": "", "labels": {}, "rule": "lag", "subject": "counts",
            "raised_at": "2026-03-01T10:00:00.000Z", "at": "2026-03-01T10:00:00.000Z",
        }
    ]  # fmt: skip
    assert receiver.headers[0]["Content-Type"] == "application/json"
    assert said == []


def test_what_a_driver_says_is_no_markup_of_a_chat() -> None:
    """Slack reads mentions and named links in angle brackets, which an error of a script can hold."""
    alert = Alert("id-1", "lag", "counts", START_AT, "<!channel> <https://evil.example|sign in> R&D")
    with receiving() as receiver, sending(receiver.url) as (webhook, _):
        webhook.tell(AlertChange("raised", "orders", "d-0001", alert, START_AT))
        assert webhook.close(20) == 0
    assert receiver.got[0]["text"] == ("orders: lag: &lt;!channel&gt; &lt;https://evil.example|sign in&gt; R&amp;D")


def test_what_fails_is_sent_again_in_order_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that is overloaded for a while gets every alert, once."""
    monkeypatch.setattr(webhooks, "MOST_SECONDS_BETWEEN_TRIES", 0.01)
    with receiving() as receiver, sending(receiver.url) as (webhook, said):
        receiver.statuses = [503, 503, 429]
        for number in range(3):
            webhook.tell(change(number))
        wait_until(lambda: len(receiver.got) == 3, lambda: str(said), 30)
        assert webhook.close(20) == 0
    assert [one["alert_id"] for one in receiver.got] == ["id-0", "id-1", "id-2"]
    place = receiver.url.partition("/T000")[0]
    assert said == [
        f"the webhook {place} has not taken an alert: it answered 503",
        f"the webhook {place} has not taken an alert: it answered 429",
    ]


@pytest.mark.parametrize("status", [400, 404, 302])
def test_what_is_refused_is_not_sent_again(status: int) -> None:
    """The same request would be refused again; a redirect is not followed. The next alert is sent."""
    with receiving() as receiver, sending(receiver.url) as (webhook, said):
        receiver.statuses = [status]
        webhook.tell(change(1))
        webhook.tell(change(2))
        assert webhook.close(20) == 0
    assert [one["alert_id"] for one in receiver.got] == ["id-2"]
    assert said == [f"the webhook {receiver.url.partition('/T000')[0]} has not taken an alert: it answered {status}"]
    assert {one["path"] for one in receiver.headers} == {"/T000/B000/hunter22?token=hunter33"}


def test_a_receiver_that_hangs_delays_nothing_and_holds_little_memory() -> None:
    """``tell`` returns at once; the oldest alerts are abandoned, and their number is reported at the end."""
    with receiving() as receiver, sending(receiver.url, timeout_seconds=0.05) as (webhook, said):
        receiver.hangs = True
        for number in range(MOST_QUEUED + 7):
            webhook.tell(change(number))
        wait_until(lambda: bool(said), "the first try to be abandoned", 30)
        assert webhook.close(5) >= MOST_QUEUED
    place = receiver.url.partition("/T000")[0]
    assert said[0] == f"the webhook {place} has not taken an alert: it did not answer within 0.05 s"
    assert said[-1].endswith(f" alerts were not sent to {place}")
    assert int(said[-1].split()[0]) in (MOST_QUEUED + 6, MOST_QUEUED + 7)


def test_a_receiver_that_is_not_there_is_named_without_its_secrets() -> None:
    """Its path, parameters and user are in no line."""
    with receiving() as receiver:
        url = receiver.url.replace("127.0.0.1", "ada:hunter44@127.0.0.1")
    with sending(url) as (webhook, said):
        webhook.tell(change())
        wait_until(lambda: bool(said), "the first try", 30)
        assert webhook.close(20) == 1
    assert "Connection refused" in said[0]
    assert "hunter" not in " ".join([*said, repr(WebhookUrl.of(url)), str(WebhookUrl.of(url))])


def test_the_user_of_a_url_is_sent_as_a_header() -> None:
    """And not in the request line."""
    with receiving() as receiver, sending(receiver.url.replace("127.0.0.1", "ada:hunter%404@127.0.0.1")) as (hook, _):
        hook.tell(change())
        assert hook.close(20) == 0
    assert receiver.headers[0]["Authorization"] == "Basic YWRhOmh1bnRlckA0"


@pytest.mark.parametrize(
    "text", ["", "hunter22", "ftp://h/hunter22", "https:///hunter22", "http://h:port/hunter22", "http://h/hunter22 x"]
)
def test_what_is_no_url_is_refused_without_being_quoted(text: str) -> None:
    """It may be a secret all the same."""
    with pytest.raises(InvalidRequestError, match="the webhook is not a URL of http or https") as caught:
        WebhookUrl.of(text)
    assert "hunter" not in str(caught.value)
