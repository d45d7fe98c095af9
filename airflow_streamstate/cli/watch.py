"""The verbs of what is done without being asked, and for whom: ``watch``, ``policy``, ``alerts`` and ``label``."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import (
    Seconds,
    Verb,
    key_values,
    option,
    pass_session,
    stream_argument,
    term_options,
    values_given,
)
from airflow_streamstate.cli.session import ShellSession, status_of_findings
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.codec import fields_json, format_time
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.policies import RestartPolicy, alert_values, check_rules
from airflow_streamstate.protocol.redaction import printable

if TYPE_CHECKING:
    from airflow_streamstate.alerts.alert_watch import AlertWatch
    from airflow_streamstate.alerts.conditions import AlertChange
    from airflow_streamstate.controller.supervise.watcher import Line

WEBHOOK_VARIABLE = "STREAMSTATE_WEBHOOK"
AUDIENCE, UNHEARD = "watch", "metrics"
"""The audiences of a watch that reports alerts, and of one that only serves metrics."""
WEBHOOK_SECONDS_AT_THE_END = 15.0
_NOT_WELL = frozenset({"failed", "gave_up", "lost", "silent", "alert", "degraded"})


class WatchEnd:
    """Whether a signal has asked this process to end."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True

    @contextmanager
    def on_signals(self) -> Iterator[WatchEnd]:
        """Within this, SIGINT and SIGTERM only ask: an act that has started is finished."""
        before = {number: signal.signal(number, self.ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@click.command(cls=Verb)
@option("--once", is_flag=True, help="Look at every stream once, restart and prune what is due, and end: for cron.")
@option("--alerts", is_flag=True, help="Print a line for each alert, and for each that is resolved.")
@option(
    "--webhook",
    metavar="URL",
    envvar=WEBHOOK_VARIABLE,
    help=f"Also post each alert to this URL as JSON. Better by {WEBHOOK_VARIABLE}: other users see command lines.",
)
@option(
    "--alert-seconds",
    type=Seconds(1, 86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How often each stream is looked at for alerts and metrics.",
)
@option("--metrics-port", type=click.IntRange(0, 65_535), metavar="N", help="Serve metrics for Prometheus there.")
@option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address of this machine that it listens at. Anybody who reaches it reads the metrics.",
)
@pass_session
def watch(session: ShellSession, /, once: bool, **asked: Any) -> int:
    """Watch every stream of the home, restart those that fail, and prune them, by their policies.

    Prints one line for each stream, and one for each change; with --json each line is one JSON object. Any number of
    these processes may watch one home. It restarts drivers of this machine, and those elsewhere whose cluster it
    reaches; they outlive it. Ends with status 0 on Ctrl-C and SIGTERM; with --once with status 1 if a stream is not
    well.

    An alert is sent once by all processes that watch a home with --alerts or --webhook, and once when it is resolved.
    """

    def say(line: Line) -> None:
        if session.as_json:
            click.echo(json.dumps(line.to_json(), ensure_ascii=True))
        else:
            name = line.stream_id or "home"
            click.echo(printable(f"{format_time(line.at)} {name} {line.sight}: {line.text}".replace("\n", " ")))

    watcher = session.controller().watcher(say, trusts_clocks=once)
    with WatchEnd().on_signals() as ending, _alerting(session, say, once=once, **asked) as looks:
        if not once:
            watcher.run(lambda: ending.is_asked)
            watcher.finish_prune()
            return status_of_findings(is_well=True)
        watcher.tick(lambda: ending.is_asked)
        watcher.prune_once(lambda: ending.is_asked)
        has_alert = looks()
    return status_of_findings(is_well=_NOT_WELL.isdisjoint(watcher.sights.values()) and not has_alert)


@contextmanager
def _alerting(
    session: ShellSession,
    say: Callable[[Line], None],
    *,
    once: bool,
    alerts: bool,
    webhook: str | None,
    alert_seconds: float,
    metrics_port: int | None,
    metrics_host: str,
) -> Iterator[Callable[[], bool]]:
    """Within this, alerts are sent and metrics served, as asked for; yields one check, which returns if any is raised.

    Raises:
        InvalidRequestError: the webhook is no URL, or nothing can listen for Prometheus.
    """
    if not (alerts or webhook or metrics_port is not None):
        yield lambda: False
        return
    from airflow_streamstate.alerts.alert_watch import AlertWatch, Rounds
    from airflow_streamstate.alerts.metrics import MetricsServer
    from airflow_streamstate.alerts.webhook import Webhook, WebhookUrl
    from airflow_streamstate.controller.supervise.watcher import Line

    is_heard = alerts or bool(webhook)

    def tell(change: AlertChange) -> None:
        if is_heard:
            say(Line(change.at, change.stream_id, change.kind, change.words))
        if hook is not None:
            hook.tell(change)

    def complain(text: str) -> None:
        say(Line(session.clock.now(), "", "alerts", text))

    controller = session.controller()
    url = WebhookUrl.of(webhook) if webhook else None
    hook: Webhook | None = None
    alert_watch = AlertWatch(
        controller,
        AUDIENCE if is_heard else UNHEARD,
        tell,
        remembers=not once,
        waiting=lambda: () if hook is None else hook.waiting(),
    )

    with ExitStack() as stack:
        if metrics_port is not None:
            server = MetricsServer(alert_watch, metrics_host, metrics_port)
            stack.callback(server.close)
            say(Line(session.clock.now(), "", "metrics", f"http://{metrics_host}:{server.port}/metrics"))
        if url is not None:
            stack.callback(_settle, alert_watch, complain)
            hook = Webhook(url, session.clock, complain, controller.home.home.uri)
            stack.callback(hook.close, WEBHOOK_SECONDS_AT_THE_END)
        if not once:
            rounds = Rounds(alert_watch, complain, alert_seconds)
            stack.callback(rounds.end)
            rounds.begin()
        yield lambda: _has_alert(alert_watch)


def _settle(alert_watch: AlertWatch, complain: Callable[[str], None]) -> None:
    try:
        alert_watch.settle()
    except StreamStateError as error:
        complain(f"the last notification is not recorded, and may be sent again: {error.message}")


def _has_alert(alert_watch: AlertWatch) -> bool:
    alert_watch.look()
    return any(one.told.standing for one in alert_watch.streams.values())


@click.command(cls=Verb)
@stream_argument
@term_options(RestartPolicy, stays=True, heading="")
@pass_session
def policy(session: ShellSession, /, stream_id: str, **given: Any) -> None:
    """Show what watchers do when a driver of STREAM fails, or change it.

    Without options it only shows the policy. What is not given stays as it is. `streamstate watch` acts on it.
    """
    details = session.controller().details
    changes = values_given(RestartPolicy, given)
    found = details.change_restart_policy(stream_id, changes) if changes else details.restart_policy(stream_id)
    result = {"stream_id": stream_id, **fields_json(found)}
    session.emit(result, lambda console: render.values(console, result))


@click.command(cls=Verb)
@stream_argument
@option(
    "--set",
    "values",
    multiple=True,
    metavar="NAME=VALUE",
    callback=key_values,
    help="A threshold, as no_commit_seconds=300; `none` removes it. Repeatable.",
)
@option("--off", multiple=True, metavar="RULE", help="Do not evaluate this rule. Repeatable.")
@option("--on", multiple=True, metavar="RULE", help="Evaluate it again. Repeatable.")
@pass_session
def alerts(
    session: ShellSession, /, stream_id: str, values: dict[str, str], off: tuple[str, ...], on: tuple[str, ...]
) -> None:
    """Show the alert rules of STREAM, or change them.

    Without options it only shows the rules. What is not given stays as it is. `streamstate watch --alerts` and
    Airflow's StreamNotifier evaluate them.
    """
    details = session.controller().details
    given = alert_values(values)
    if off or on:
        on, kept = check_rules(on), given.get("off", details.alert_rules(stream_id).off)
        given["off"] = tuple(dict.fromkeys((*(one for one in kept if one not in on), *off)))
    found = details.change_alert_rules(stream_id, given) if given else details.alert_rules(stream_id)
    result = {"stream_id": stream_id, **fields_json(found)}
    session.emit(result, lambda console: render.values(console, result))


@click.command(cls=Verb)
@stream_argument
@click.argument("labels", nargs=-1, metavar="[NAME=VALUE]...", callback=key_values)
@option("--owner", metavar="TEXT", help="A person or a team; '' removes it.")
@option("--remove", multiple=True, metavar="NAME", help="Remove this label. Repeatable.")
@pass_session
def label(
    session: ShellSession, /, stream_id: str, labels: dict[str, str], owner: str | None, remove: tuple[str, ...]
) -> None:
    """Show whose STREAM is, or change it: its owner and its labels.

    Without more words it only shows them. What is not given stays as it is. Nothing is started or ended.
    """
    details = session.controller().details
    if labels or remove or owner is not None:
        found = details.change_ownership(stream_id, owner, more_labels=labels, without=frozenset(remove))
    else:
        found = details.ownership(stream_id)
    result = {"stream_id": stream_id, **selected(found, "owner labels")}
    session.emit(result, lambda console: render.ownership(console, result))
