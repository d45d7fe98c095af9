"""Text of streams in Markdown, e.g. in the form by which a person approves a plan."""

from __future__ import annotations

import re

_MARKUP = re.compile(r"[\\`*_\[\]()<>!|~&#]")
_LINKED = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", re.IGNORECASE)
_NO_WIDTH = "\u200b"


def plain_markdown(text: object) -> str:
    """Text within a line that Markdown shows as it is, also in a table: no link, no picture, no element, no code.

    Interfaces make links of bare addresses, too, after they have read the Markdown. So an address is broken by a
    character without width.
    """
    line = " ".join(str(text).split())
    return _MARKUP.sub(lambda found: f"\\{found[0]}", _LINKED.sub(_NO_WIDTH, line))
