"""The columns that Spark keeps for each key of an aggregation, by the schema file of its state."""

from __future__ import annotations

import json

_STRUCT = '{"type":"struct"'


def value_columns(body: bytes) -> tuple[str, ...] | None:
    """The names of the columns of the value, in their order; None where the file does not tell.

    Spark names the columns after its functions (``sum``, ``count``), and compares only their types at a start.
    """
    text, found, at = body.decode(errors="replace"), [], 0
    while (at := text.find(_STRUCT, at)) >= 0:
        try:
            struct, at = json.JSONDecoder().raw_decode(text, at)
        except ValueError:  # cut into pieces
            return None
        found.append(struct)
    if len(found) != 2:  # key, value
        return None
    try:
        return tuple(str(field["name"]) for field in found[1]["fields"])
    except (KeyError, TypeError):
        return None
