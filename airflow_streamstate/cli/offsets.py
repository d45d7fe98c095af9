"""The file of ``--offsets``: where each source of a query begins."""

from __future__ import annotations

import json
from pathlib import Path

import click


def read_offsets(content: object) -> dict[str, tuple[str, ...]]:
    """Offsets by query, one text for each source.

    Args:
        content: ``{NAME: [OFFSET, …]}``, or an object whose ``queries`` have ``end_offsets``. An offset is Spark's
            text, or its JSON.

    Raises:
        ValueError: it has another form.
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


def read_offsets_file(option: str, path: str) -> dict[str, tuple[str, ...]]:
    """The offsets in the file of this option. Raises UsageError where it cannot be read, or holds none."""
    try:
        return read_offsets(json.loads(Path(path).read_text()))
    except OSError as error:
        raise click.UsageError(f"{option}: {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{option}: {path} holds no offsets ({error})") from None
