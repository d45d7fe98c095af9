"""``snapshot inspect``, ``export`` and ``diff``: the state of a stream, and its changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli.naming import allow_here
from airflow_streamstate.cli.options import (
    Verb,
    option,
    pass_session,
    stream_argument,
    term_options,
    terms_given,
    values_given,
)
from airflow_streamstate.cli.render import age, plain_table, shown
from airflow_streamstate.cli.session import ShellSession, status_of_findings
from airflow_streamstate.protocol.terms.order import SHOWN_ROWS, ExportTerms, ReadingTerms

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_streamstate.controller.scratch.readings import ReadingRequest

Row = Mapping[str, Any]
_TIMES = {"processing_time": "processing time", "event_time": "event time", "timeout": "a timeout"}
_MAX_CHARACTERS = 2_000


def print_state(console: Console, row: Row) -> None:
    """After ``snapshot inspect`` and ``export``."""
    console.print(shown(f"{row['stream_id']} {_snapshot(row)}"))
    for name, query in row["queries"].items():
        _query(console, name, query)
    for found in row["found"]:
        _rows(console, f"{found['query_name']} {found['table']}", found["rows"], more=found["more"], limit=row["limit"])
    if row["key"] is not None and not any(found["rows"] for found in row["found"]):
        console.print(shown(f"no row has the key {_json(row['key'])}"))
    if row["export"] is not None:
        _export(console, row["export"], row["since_snapshot_id"])


def print_diff(console: Console, row: Row) -> None:
    """After ``snapshot diff``."""
    console.print(shown(f"{row['stream_id']}: from {_snapshot(row['before'])}"))
    console.print(shown(f"{' ' * len(row['stream_id'])}    to {_snapshot(row['after'])}"))
    table = plain_table("query", "table", ">added", ">changed", ">gone")
    for name, query in row["queries"].items():
        for found in query["tables"]:
            counts = (f"{found[kind]:,}" for kind in ("added", "changed", "gone"))
            table.add_row(shown(name), shown(found["table"]), *counts)
    console.print(table)
    for name, query in row["queries"].items():
        for found in query["tables"]:
            for kind, rows in found["examples"].items():
                title = f"{kind} in {name} {found['table']}"
                _rows(console, title, rows, more=found[kind] > len(rows), limit=row["limit"])
        _problems(console, name, query["problems"])
    for name, side in row["only_in"].items():
        console.print(shown(f"query {name} is only in {row[side]['snapshot_id']}", "yellow"))


def _query(console: Console, name: str, query: Row) -> None:
    watermark = f", watermark {query['watermark_at']}" if query["watermark_at"] else ""
    batch = "nothing committed" if query["batch_id"] is None else f"batch {query['batch_id']}"
    console.print(shown(f"{name}: {batch}{watermark}", "bold"))
    if not query["operators"]:
        console.print("  it keeps no state")
        return
    table = plain_table("  operator", ">partitions", ">rows", ">bytes", ">fullest", ">median", ">skew")
    for one in query["operators"]:
        skew = one["skew"] or {"most": None, "median": None, "ratio": None, "fullest": 0}
        fullest = "-" if skew["most"] is None else f"{skew['most']:,} (partition {skew['fullest']})"
        median = "-" if skew["median"] is None else f"{skew['median']:,g}"
        ratio = "-" if skew["ratio"] is None else f"{skew['ratio']:g}"
        rows = "-" if one["rows"] is None else f"{one['rows']:,}"
        name_shown = shown(f"  {one['operator_id']} {one['name']}".rstrip())
        table.add_row(name_shown, f"{one['partitions']:,}", rows, f"{one['bytes']:,}", fullest, median, ratio)
    console.print(table)
    _contents(console, query["operators"])
    _problems(console, name, query["problems"])


def _contents(console: Console, operators: Sequence[Row]) -> None:
    table = plain_table("  table", "kind", ">rows", "columns")
    for one in operators:
        for found in one["tables"]:
            kind = f"{found['kind']}, with time to live" if found["has_ttl"] else found["kind"]
            columns = ", ".join(f"{column} {type_}" for column, type_ in found["columns"].items())
            table.add_row(shown(f"  {found['table']}"), kind, f"{found['rows']:,}", shown(columns))
    if table.row_count:
        console.print(table)
    for one in operators:
        for timers in one["timers"]:
            when = f"next {timers['next_at']}, last {timers['last_at']}" if timers["count"] else "none is set"
            count = f"{timers['count']:,} timers of {_TIMES[timers['time']]}"
            console.print(shown(f"  operator {one['operator_id']}: {count}: {when}"))


def _export(console: Console, export: Row, since: str | None) -> None:
    what = f"changes since {since}" if since else "state"
    whole = "" if export["complete"] else ", not complete"
    console.print(shown(f"{what} written to {export['uri']} ({export['format']}{whole})"))
    columns = (">upserts", ">deletes", "by") if since else (">rows",)
    table = plain_table("  table", *columns)
    for one in export["tables"]:
        counts = (f"{one['upserts']:,}", f"{one['deletes']:,}", one["way"]) if since else (f"{one['rows']:,}",)
        table.add_row(shown(f"  {one['path']}"), *counts)
    console.print(table)
    _problems(console, "not written", export["problems"], key="path")
    for name, side in export["only_in"].items():
        console.print(shown(f"query {name} is only in the {_side(side)} snapshot: not written", "yellow"))


def _side(side: str) -> str:
    return "older" if side == "before" else "newer"


def _rows(console: Console, title: str, rows: Sequence[Row], *, more: bool, limit: int) -> None:
    if not rows:
        return
    console.print(shown(f"{title}:", "bold"))
    for row in rows:
        console.print(shown(f"  {_json(row)}"), soft_wrap=True)
    if more:
        console.print(shown(f"  and more: --limit {limit} shows no more than these"))


def _problems(console: Console, title: str, problems: Iterable[Row], key: str = "table") -> None:
    for problem in problems:
        console.print(shown(f"  {title}: {problem[key]} cannot be read: {problem['reason']}", "bold red"))


def _snapshot(row: Row) -> str:
    return f"{row['snapshot_id']} ({row['kind']}, {age(row['age_seconds'])}, Spark {row['spark_version'] or 'unknown'})"


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


MOST_ROWS = 10_000


_limit_option = option(
    "--limit", type=click.IntRange(1, MOST_ROWS), default=SHOWN_ROWS, show_default=True, metavar="N",
    help="Show at most this many rows of each table.",
)  # fmt: skip


@click.command(cls=Verb)
@stream_argument
@option("--key", "key_text", metavar="JSON", help="Only show rows whose key has these columns and values.")
@term_options(ReadingTerms)
@_limit_option
@pass_session
def inspect(session: ShellSession, /, stream_id: str, key_text: str | None, limit: int, **given: Any) -> int:
    """Show the state of STREAM in a snapshot.

    Operators, partitions, rows, bytes, skew, variables with their kinds, timers with the next one to fire. A Spark
    driver on this machine reads a fork of the snapshot; the stream may keep running.

    Exit status 1 if some of it could not be read.
    """
    return _look(session, _request(stream_id, key_text, limit, values_given(ReadingTerms, given)))


@click.command(cls=Verb)
@stream_argument
@term_options(ExportTerms, needs_required=True)
@option("--key", "key_text", metavar="JSON", help="Only write rows whose key has these columns and values.")
@term_options(ReadingTerms)
@_limit_option
@pass_session
def export(session: ShellSession, /, stream_id: str, key_text: str | None, limit: int, **given: Any) -> int:
    """Write the state of STREAM in a snapshot as tables.

    It is read and shown as by `snapshot inspect`.

    Exit status 1 if some of it could not be read or written.
    """
    terms = terms_given(ExportTerms, given)
    if key_text is not None and terms.changes_since is not None:
        raise click.UsageError("--key chooses rows of a state, and --changes-since writes changes: leave out one")
    values = {**vars(terms), **values_given(ReadingTerms, given)}
    return _look(session, _request(stream_id, key_text, limit, values))


def _request(stream_id: str, key_text: str | None, limit: int, values: Mapping[str, Any]) -> ReadingRequest:
    from airflow_streamstate.controller.scratch.readings import ReadingRequest, parse_key

    key = None if key_text is None else parse_key(key_text)
    return ReadingRequest(stream_id=stream_id, key=key, limit=limit, **values)


def _look(session: ShellSession, request: ReadingRequest) -> int:
    allow_here(session)
    controller = session.controller()
    with session.progress(f"{request.stream_id}: reading state") as on_progress:
        result = controller.readings.look(request, on_progress)
    session.emit(result, lambda console: print_state(console, result))
    export = result["export"] or {"problems": []}
    problems = [*export["problems"], *(one for query in result["queries"].values() for one in query["problems"])]
    return status_of_findings(is_well=not problems)


@click.command(cls=Verb)
@stream_argument
@click.argument("changes_since", metavar="SNAPSHOT")
@click.argument("snapshot_id", metavar="SNAPSHOT")
@term_options(ReadingTerms, "diff")
@_limit_option
@pass_session
def diff(session: ShellSession, /, stream_id: str, changes_since: str, limit: int, **given: Any) -> int:
    """Show which keys of the state of STREAM were added, changed and removed from the first SNAPSHOT to the second.

    By operator and variable: the number, and the first rows of each. Refused if the operators differ.

    Exit status 1 if some of it could not be read.
    """
    from airflow_streamstate.controller.scratch.readings import ReadingRequest

    values = values_given(ReadingTerms, given)
    request = ReadingRequest(stream_id=stream_id, changes_since=changes_since, limit=limit, **values)
    allow_here(session)
    controller = session.controller()
    with session.progress(f"{stream_id}: comparing state") as on_progress:
        result = controller.readings.diff(request, on_progress)
    session.emit(result, lambda console: print_diff(console, result))
    return status_of_findings(is_well=not any(query["problems"] for query in result["queries"].values()))
