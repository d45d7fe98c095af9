"""What a person reads of events: one line each, its facts as ``key=value``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from airflow_streamstate.cli.tables import Row, plain_table, short, shown
from airflow_streamstate.connectors.moving import in_words
from airflow_streamstate.protocol.positions import SourceMove

_NO_FACTS = {
    "number", "kind", "protocol", "at", "attempt", "stream_id", "deployment_id", "write_id", "traceback", "command_id",
    "command_number", "query_id", "query_run_id", "identities",
}  # fmt: skip


def events(console: Console, rows: Sequence[Row]) -> None:
    """After events, oldest first."""
    if not rows:
        console.print("no events yet")
        return
    table = plain_table("n", "at", "attempt", "event", "facts")
    for row in rows:
        number, at, attempt = (str(row.get(key, "")) for key in ("number", "at", "attempt"))
        facts = " ".join(f"{key}={_quoted(value)}" for key, value in _facts(row))
        table.add_row(number, at, attempt, shown(row["kind"]), shown(facts))
    console.print(table)


def _facts(row: Row) -> Iterator[tuple[str, str]]:
    for key, value in row.items():
        if key in _NO_FACTS or not value:
            continue
        if key == "facts" and isinstance(value, Mapping):  # of a note: they are what is told
            yield from ((str(name), short(_in_words("", one))) for name, one in value.items())
        else:
            yield key, short(_in_words(key, value))


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text and not text.startswith(("{", "[", '"')) else text


def _in_words(key: str, value: Any) -> str:
    reader = _READERS.get(key)
    if reader is not None and isinstance(value, Mapping | list):
        return reader(value)
    if isinstance(value, list) and not any(isinstance(one, Mapping | list) for one in value):
        return ("; " if any(" " in str(one) for one in value) else ",").join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list | bool) else str(value)


def _pairs(values: Mapping[str, Any]) -> str:
    return ",".join(f"{name}:{short(value)}" for name, value in values.items())


_READERS: Mapping[str, Callable[[Any], str]] = {
    "queries": lambda queries: _pairs({name: query.get("batch_id") for name, query in queries.items()}),
    "command": lambda command: str(command.get("kind", "?")),
    "flush_batch_ids": _pairs,
    "ends": lambda ends: _pairs({name: end.get("flushed_at") or end.get("ended_at") for name, end in ends.items()}),
    "watermarks": lambda marks: _pairs({mark["column"]: f"{mark['delay_ms'] / 1000:g}s" for mark in marks}),
    "moves": lambda moves: "; ".join(in_words([SourceMove(**move) for move in moves])),
}
