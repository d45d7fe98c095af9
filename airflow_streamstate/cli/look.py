"""The verbs that only look: ``status``, ``list``, ``events``, ``logs``, ``audit``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import Verb, option, pass_session, stream_argument, term_options
from airflow_streamstate.cli.render import Row, plain_table, short, shown
from airflow_streamstate.cli.session import ShellSession, status_of_findings, status_of_states
from airflow_streamstate.connectors.moves import describe
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.policies import Ownership, check_label
from airflow_streamstate.protocol.positions import SourceMove
from airflow_streamstate.protocol.redaction import printable
from airflow_streamstate.protocol.terms.order import DeploymentChoice

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_streamstate.controller.observe.logs import LogReader

_NO_FACTS = {
    "number", "kind", "protocol", "at", "attempt", "stream_id", "deployment_id", "write_id", "traceback", "command_id",
    "command_number", "query_id", "query_run_id", "identities",
}  # fmt: skip


def print_events(console: Console, rows: Sequence[Row]) -> None:
    """One line for each event, its facts as ``key=value``."""
    if not rows:
        console.print("no events yet")
        return
    table = plain_table("n", "at", "attempt", "event", "facts")
    for row in rows:
        number, at, attempt = (str(row.get(key, "")) for key in ("number", "at", "attempt"))
        facts = " ".join(f"{key}={_quoted(value)}" for key, value in facts_of_event(row))
        table.add_row(number, at, attempt, shown(row["kind"]), shown(facts))
    console.print(table)


def facts_of_event(row: Row) -> Iterator[tuple[str, str]]:
    """The facts of an event as text, by name; ``row``: the JSON of the event."""
    for key, value in row.items():
        if key in _NO_FACTS or not value:
            continue
        if key == "facts" and isinstance(value, Mapping):  # of a note
            yield from ((str(name), short(_describe("", one))) for name, one in value.items())
        else:
            yield key, short(_describe(key, value))


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text and not text.startswith(("{", "[", '"')) else text


def _describe(key: str, value: Any) -> str:
    reader = _READERS.get(key)
    if reader is not None and isinstance(value, Mapping | list):
        return reader(value)
    if isinstance(value, list) and not any(isinstance(one, Mapping | list) for one in value):
        return ("; " if any(" " in str(one) for one in value) else ",").join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list | bool) else str(value)


def command_words(command: Mapping[str, Any]) -> str:
    """What was ordered, by whom, and why: ``StopRequest of ada: the broker is moved``."""
    words, by, reason = str(command.get("kind", "?")), command.get("requested_by"), command.get("reason")
    return f"{words}{f' of {by}' if by else ''}{f': {reason}' if reason else ''}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ",".join(f"{name}:{short(value)}" for name, value in values.items())


_READERS: Mapping[str, Callable[[Any], str]] = {
    "queries": lambda queries: _pairs({name: query.get("batch_id") for name, query in queries.items()}),
    "command": lambda command: command_words(command),
    "flush_batch_ids": _pairs,
    "ends": lambda ends: _pairs({name: end.get("flushed_at") or end.get("ended_at") for name, end in ends.items()}),
    "watermarks": lambda marks: _pairs({mark["column"]: f"{mark['delay_ms'] / 1000:g}s" for mark in marks}),
    "moves": lambda moves: "; ".join(describe([SourceMove(**move) for move in moves])),
}


FOLLOW_SECONDS = 0.5


@click.command(cls=Verb)
@stream_argument
@term_options(DeploymentChoice)
@pass_session
def status(session: ShellSession, /, stream_id: str, deployment_id: str | None) -> int:
    """Show the state of STREAM, and of each of its queries.

    Exit status 1 if it is degraded, failed, lost or silent.
    """
    from airflow_streamstate.controller.observe.observer import full_disks

    result = session.controller().status(stream_id, deployment_id).to_json()
    result["full_disks"] = full_disks(session.home())
    session.emit(result, lambda console: render.status(console, result, verbose=session.is_verbose))
    return status_of_states([str(result["state"])])


@click.command(cls=Verb)
@option("--label", "labels", multiple=True, metavar="LABEL", help="With this label, NAME or NAME=VALUE. Repeatable.")
@option("--owner", metavar="TEXT", help="Of this owner.")
@pass_session
def list_(session: ShellSession, /, labels: tuple[str, ...], owner: str | None) -> int:
    """List all streams of this home, one line each.

    Exit status 1 if one of them is degraded, failed, lost or silent, or cannot be read. A stream that cannot be read
    is listed whatever the labels: its own are unknown.
    """
    for label in labels:
        check_label(label)
    rows = [
        status.to_json()
        for status in session.controller().statuses()
        if status.state == "unreadable" or _is_asked(Ownership(status.owner, status.labels), labels, owner)
    ]
    asked = (*(f"with {label}" for label in labels), *([] if owner is None else [f"of owner {owner}"]))
    where = ", ".join((str(session.home_uri), *asked))
    session.emit({"streams": rows}, lambda console: render.streams(console, rows, where))
    return status_of_states(str(row["state"]) for row in rows)


def _is_asked(owned: Ownership, labels: tuple[str, ...], owner: str | None) -> bool:
    return all(owned.has(label) for label in labels) and owner in (None, owned.owner)


@click.command(cls=Verb)
@stream_argument
@term_options(DeploymentChoice)
@pass_session
def events(session: ShellSession, /, stream_id: str, deployment_id: str | None) -> None:
    """List the events of a deployment of STREAM, oldest first."""
    rows = [
        {"number": entry.number, **to_json(entry.event)}
        if entry.event is not None
        else {"number": entry.number, "kind": "unreadable", "problem": str(entry.problem)}
        for entry in session.controller().events(stream_id, deployment_id)
    ]
    session.emit({"events": rows}, lambda console: print_events(console, rows))


@click.command(cls=Verb)
@stream_argument
@term_options(DeploymentChoice)
@option("--attempt", type=click.IntRange(min=1), metavar="N", help="The current attempt by default.")
@option("--follow", is_flag=True, help="Print until the driver has ended, or Ctrl-C.")
@option(
    "--tail-bytes",
    type=click.IntRange(min=1),
    default=65_536,
    show_default=True,
    metavar="N",
    help="Start so far before the end.",
)
@pass_session
def logs(
    session: ShellSession,
    stream_id: str,
    deployment_id: str | None,
    attempt: int | None,
    follow: bool,
    tail_bytes: int,
) -> None:
    """Print the log of the driver of STREAM, of Spark, the script and the agent, with secrets hidden."""
    if follow and session.as_json:
        raise click.UsageError("--follow prints as it comes, and --json prints one object: leave out one of them")
    controller = session.controller()
    status = controller.status(stream_id, deployment_id)
    reader = controller.log_reader(stream_id, deployment_id, attempt, tail_bytes=tail_bytes)
    text = reader.read_new()
    if not text and attempt is not None and attempt > status.attempt:
        raise InvalidRequestError(
            "this deployment has no such attempt",
            stream_id=stream_id,
            deployment_id=status.deployment_id,
            attempt=attempt,
            last_attempt=status.attempt,
        )
    facts = {"stream_id": stream_id, "deployment_id": status.deployment_id, "attempt": attempt or status.attempt}
    session.emit({**facts, "log": text}, lambda _console: click.echo(_harmless(text), nl=False))
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(session, reader)
    elif not text:
        session.say(lambda console: console.print("the driver has written nothing yet"))


def _harmless(log: str) -> str:
    """A log without what acts on a terminal; a progress bar of Spark, which returns to the start of its line, has a
    line for each of its states."""
    lines = log.replace("\r\n", "\n").replace("\r", "\n")
    return "\t".join(map(printable, lines.split("\t")))


def _follow(session: ShellSession, reader: LogReader) -> None:
    ended = False
    while not ended:
        ended = reader.has_ended()  # before the last read, which then gets the end of the log
        click.echo(_harmless(reader.read_new()), nl=False)
        if not ended:
            session.clock.sleep(FOLLOW_SECONDS)


@click.command(cls=Verb)
@stream_argument
@option("--since", metavar="DEPLOYMENT", help="Start with this deployment.")
@pass_session
def audit(session: ShellSession, /, stream_id: str, since: str | None) -> int:
    """Prove from the logs that each deployment of STREAM started exactly where its predecessor ended.

    By query and source partition, with consecutive batch ids. Names the offsets of each gap (input that no deployment
    read) and overlap (input that two deployments read), and each period in which nothing ran. Exit status 1 if the
    chain is broken or unreadable.
    """
    from airflow_streamstate.controller.observe.lineage import lineage_of

    result = lineage_of(session.home(), stream_id, since).to_json()
    session.emit(result, lambda console: render.lineage(console, result))
    return status_of_findings(is_well=bool(result["ok"]))
