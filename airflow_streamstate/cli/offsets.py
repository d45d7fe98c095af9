"""``--offsets FILE`` and ``--at TIMESTAMP``: where a seed begins, as a user writes it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from airflow_streamstate.protocol.codec import parse_time


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A time with its zone, as RFC 3339 writes it."""

    name = "timestamp"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return parse_time(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time such as 2026-03-01T10:00:00Z.", param, ctx)


def read_offsets(content: object) -> dict[str, tuple[str, ...]]:
    """Offsets by query, one text for each source.

    Args:
        content: ``{NAME: [OFFSET, …]}``, or an object whose ``queries`` have ``end_offsets``. An offset is Spark's
            text, or the JSON that it holds.

    Raises:
        ValueError: it is neither.
    """
    queries = content.get("queries", content) if isinstance(content, dict) else None
    if not isinstance(queries, dict) or not queries:
        raise ValueError("no offsets by query")
    found = {}
    for name, lines in queries.items():
        offsets = lines.get("end_offsets") if isinstance(lines, dict) else lines
        if not isinstance(offsets, list) or not offsets:
            raise ValueError(f"query {name} has no list of offsets")
        found[str(name)] = tuple(
            offset if isinstance(offset, str) else json.dumps(offset, separators=(",", ":")) for offset in offsets
        )
    return found


def read_offsets_file(path: str | None) -> dict[str, tuple[str, ...]]:
    """The offsets in a file, as ``read_offsets``; none for None.

    Raises:
        click.UsageError: it cannot be read, or holds none.
    """
    if path is None:
        return {}
    try:
        return read_offsets(json.loads(Path(path).read_text()))
    except OSError as error:
        raise click.UsageError(f"--offsets: {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--offsets: {path} holds no offsets ({error})") from None
