"""The verbs of supervised restart: ``watch`` and ``policy``."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.exits import status_of_findings
from airflow_streamstate.cli.options import (
    Verb,
    option,
    pass_session,
    restart_options,
    restart_policy_of,
    stream_argument,
)
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.protocol.codec import fields_json, format_time
from airflow_streamstate.protocol.redaction import printable

if TYPE_CHECKING:
    from airflow_streamstate.controller.supervise.watcher import Line

_NOT_WELL = frozenset({"failed", "gave_up", "lost", "alert", "degraded"})


class Ending:
    """Whether a signal has asked this process to end."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True

    @contextmanager
    def on_signals(self) -> Iterator[Ending]:
        """Within this, SIGINT and SIGTERM only ask: an act that has begun is finished."""
        before = {number: signal.signal(number, self.ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@click.command(cls=Verb)
@option("--once", is_flag=True, help="Look at every stream once, restart what is due, and end: for cron.")
@pass_session
def watch(session: ShellSession, /, once: bool) -> int:
    """Watch every stream of the home, and restart those that fail as their policies say.

    Prints one line for each stream, and one for each change; with --json each line is one JSON object. Any number of
    these processes may watch one home. It restarts drivers of this machine, and those elsewhere whose cluster it
    reaches; they outlive it. Ends with status 0 on Ctrl-C and SIGTERM; with --once with status 1 if a stream is not
    well.
    """

    def say(line: Line) -> None:
        if session.as_json:
            click.echo(json.dumps(line.to_json(), ensure_ascii=True))
        else:
            name = line.stream_id or "home"
            click.echo(printable(f"{format_time(line.at)} {name} {line.sight}: {line.text}".replace("\n", " ")))

    watcher = session.controller().watcher(say, trusts_clocks=once)
    with Ending().on_signals() as ending:
        if not once:
            watcher.run(lambda: ending.is_asked)
            return status_of_findings(is_well=True)
        watcher.tick(lambda: ending.is_asked)
    return status_of_findings(is_well=_NOT_WELL.isdisjoint(watcher.sights.values()))


@click.command(cls=Verb)
@stream_argument
@restart_options("")
@pass_session
def policy(session: ShellSession, /, stream_id: str, **given: Any) -> None:
    """Show what watchers do when a driver of STREAM fails, or change it.

    Without options it only shows the policy. What is not given stays as it is. `streamstate watch` acts on it.
    """
    supervision = session.controller().supervision
    changes = restart_policy_of(given)
    found = supervision.change_policy(stream_id, changes) if changes else supervision.policy(stream_id)
    result = {"stream_id": stream_id, **fields_json(found)}
    session.emit(result, lambda console: render.restart_policy(console, result))
