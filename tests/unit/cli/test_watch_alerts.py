"""Alerts and metrics of ``watch``, over drivers that run no Spark."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from support.launches import wait_until
from support.loopback import free_port
from support.scripted_driver import script
from support.shell import Desk, shell
from support.watching import watching
from support.webhook_receiver import receiving

pytestmark = pytest.mark.fast


def deploy(desk: Desk, job: str, *words: object) -> None:
    """Deploy a script that makes its driver behave so."""
    answer = shell("deploy", "flights", "--app", script(desk.base, job), "--async", *words)
    assert answer.status == 0, answer


def test_a_driver_that_is_killed_is_told_to_a_webhook_and_seen_by_a_scrape(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has to be asked; when it runs again, that is reported, too. The URL's secrets are in no line."""
    deploy(desk, "runs")
    out = desk.base / "watch.out"
    with receiving() as receiver:
        monkeypatch.setenv("STREAMSTATE_WEBHOOK", receiver.url)
        with watching(out, "--alert-seconds", "1", "--metrics-port", "0") as watch:
            watch.wait_for("up")
            watch.wait_for("metrics")
            address = next(line["text"] for line in watch.lines if line["sight"] == "metrics")
            assert address.startswith("http://127.0.0.1:")
            wait_until(lambda: 'streamstate_stream_up{stream="flights"} 1.0' in scrape(address), "it to be up", 60)
            desk.end_drivers()
            wait_until(lambda: len(receiver.got) == 1, lambda: out.read_text(), 60)
            assert 'streamstate_stream_up{stream="flights"} 0.0' in scrape(address)
            assert shell("resume", "flights", "--timeout", 60).status == 0
            wait_until(lambda: len(receiver.got) == 2, lambda: out.read_text(), 60)
            assert watch.end() == 0
            lines = watch.lines
    raised, resolved = receiver.got
    assert (raised["kind"], raised["stream_id"], raised["rule"]) == ("raised", "flights", "driver_dead")
    assert (resolved["kind"], resolved["alert_id"]) == ("resolved", raised["alert_id"])
    told = [(line["sight"], line["stream_id"]) for line in lines if line["sight"] in ("raised", "resolved")]
    assert told == [("raised", "flights"), ("resolved", "flights")]
    assert "hunter" not in out.read_text()
    assert shell("stop", "flights", "--timeout", 30).status == 0


def scrape(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - our own, on loopback
        return str(answer.read().decode())


def test_a_webhook_that_hangs_delays_no_restart(desk: Desk) -> None:
    """Nor the end of the process."""
    deploy(desk, "runs", "--on-failure", "restart", "--initial-backoff", 0)
    with receiving() as receiver:
        receiver.hangs = True
        words = ("--alert-seconds", "1", "--webhook", receiver.url)
        with watching(desk.base / "watch.out", *words) as watch:
            watch.wait_for("up")
            for count in (2, 3):
                desk.end_drivers()
                watch.wait_for("up", count)
            assert watch.end() == 0
    assert shell("status", "flights", "--json").json["attempt"] == 3
    desk.end_drivers()


def test_a_single_pass_tells_each_alert_once(desk: Desk) -> None:
    """For cron: what the last pass reported is in the home, and what its webhook did not take is sent by the next."""
    deploy(desk, "fails")
    wait_until(lambda: shell("status", "flights", "--json").json["state"] == "failed", "its end", 60)
    first = shell("watch", "--once", "--webhook", f"http://127.0.0.1:{free_port()}", "--json")
    (line,) = [one for one in first.json_lines if one["sight"] == "raised"]
    assert line["text"].startswith("driver_dead: attempt 1 is failed: ValueError: boom")
    assert first.status == 1
    with receiving() as receiver:
        assert "driver_dead" in shell("watch", "--once", "--webhook", receiver.url).out
        second = shell("watch", "--once", "--webhook", receiver.url)
    assert [one["text"] for one in receiver.got] == [f"flights: {line['text']}"]
    assert "driver_dead" not in second.out
    quiet = shell("watch", "--once")
    assert "driver_dead" not in quiet.out


def test_what_cannot_be_told_or_served_is_refused_before_anything_is_watched(desk: Desk) -> None:
    """One sentence, and status 2; a webhook's URL is not quoted."""
    deploy(desk, "hangs")
    refused = shell("watch", "--once", "--webhook", "hooks.example/hunter22")
    assert (refused.status, "not a URL of http or https" in refused.err, refused.out) == (2, True, "")
    assert "hunter22" not in refused.err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = shell("watch", "--once", "--metrics-port", port)
    assert (refused.status, "nothing can listen for Prometheus here" in refused.err) == (2, True)
    assert shell("watch", "--once", "--metrics-port", 70_000).status == 2
    assert shell("watch", "--once", "--alerts", "--alert-seconds", "nan").status == 2


def test_the_rules_are_a_table_of_names_and_values(desk: Desk) -> None:
    """And a threshold that is no number is reported as such."""
    desk.stream().deploy().runs()
    assert [line.split() for line in shell("alerts", "flights").out.splitlines()[:3]] == [
        ["name", "value"],
        ["driver_silent_seconds", "120.0"],
        ["no_commit_seconds", "900.0"],
    ]
    refused = shell("alerts", "flights", "--set", "no_commit_seconds=abc", "--json").error
    assert refused["message"] == "no_commit_seconds cannot have this value"
    assert refused["next_step"] == "Use a number of seconds from 1 to 315,360,000."
