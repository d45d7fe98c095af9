"""The answer of a verb: the fact, then the next step, then the rest; of trouble at most six lines, all by --verbose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.redaction import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

MOST_LINES = 6
MOST_CHARACTERS = 400
_LONG_FACT = 100
"""A longer fact is shown up to the limit; a shorter one is shown or left out."""


class Printer(Protocol):
    """What lines and tables are printed on: a console, or an answer."""

    def print(self, what: Any, /, *, style: str = "", soft_wrap: bool = False) -> None:
        """Print one line, one table or one text of several lines."""


@dataclass(frozen=True)
class Part:
    """One line, table or text of an answer.

    Attributes:
        name: what the last line of a short answer calls it.
        is_main: whether a short answer may show it, cut to one line.
    """

    name: str
    what: Text | Table | str
    style: str
    soft_wrap: bool
    is_main: bool

    @property
    def lines(self) -> int:
        """The number of its lines, without the terminal's wrapping."""
        from rich.table import Table

        return self.what.row_count + 1 if isinstance(self.what, Table) else str(self.what).count("\n") + 1

    @property
    def is_long(self) -> bool:
        """Whether it is more than one line of limited length."""
        return self.lines > 1 or len(str(self.what)) > MOST_CHARACTERS

    @property
    def first_line(self) -> Text | Table | str:
        """Its text in one line of limited length; a table as it is."""
        from rich.text import Text

        if not self.is_long or not isinstance(self.what, Text):
            return self.what
        return self.what.split()[0][: MOST_CHARACTERS - 1] + Text("…")

    def print(self, console: Console, what: Text | Table | str) -> None:
        """Print it as it is, or what is left of it."""
        console.print(what, style=self.style or None, soft_wrap=self.soft_wrap or None)


class Answer:
    """Collects what a verb has to say; what is printed first is the fact.

    Args:
        name, is_main: of the parts that are printed on it (``Part``).
        parts: those of the answer that this is a view of; None for a new one.
    """

    def __init__(self, name: str = "", *, is_main: bool = True, parts: list[Part] | None = None) -> None:
        self._name = name
        self._is_main = is_main
        self._parts = [] if parts is None else parts

    def main(self, name: str) -> Answer:
        """The same answer, for parts that a short one shows while there is room."""
        return Answer(name, is_main=True, parts=self._parts)

    def more(self, name: str) -> Answer:
        """The same answer, for parts that a short one only names."""
        return Answer(name, is_main=False, parts=self._parts)

    def print(self, what: Any, /, *, style: str = "", soft_wrap: bool = False) -> None:
        """Add one line, one table or one text of several lines."""
        self._parts.append(Part(self._name, what, style, soft_wrap, self._is_main))

    def block(self, title: str, text: str) -> None:
        """Add a text of several lines below its title; nothing for an empty one."""
        from rich.text import Text

        if text:
            rows = "".join(f"\n    {row}" for row in text.splitlines())
            self.more(title).print(Text(printable(f"{title}:"), "bold") + Text(printable(rows)), soft_wrap=True)

    def show(self, console: Console, next_step: str, *, is_short: bool, cut: Sequence[str] = ()) -> None:
        """Print the answer.

        Args:
            next_step: "" where there is nothing to do.
            is_short: print at most ``MOST_LINES`` lines; the last one names what was left out.
            cut: what else was left out, for the same line.
        """
        from rich.text import Text

        fact, *rest = self._parts
        fact.print(console, fact.what)
        if next_step:
            words = " ".join(next_step.splitlines()) if is_short else next_step
            console.print(Text(printable(f"-> {words}")))
        room = MOST_LINES - 1 - bool(next_step)
        if not is_short or _fit(rest, room - bool(cut)):
            left = list(cut)
            for part in rest:
                part.print(console, part.what)
        else:
            kept = [part for part in rest if part.is_main][: room - 1]
            left = [*cut, *_names([part for part in rest if part not in kept or part.is_long])]
            for part in kept:
                part.print(console, part.first_line)
        if left:
            console.print(Text(printable(f"… {', '.join(left)}: --verbose")))


def _fit(parts: Sequence[Part], room: int) -> bool:
    return sum(part.lines for part in parts) <= room and not any(part.is_main and part.is_long for part in parts)


def facts_within(sentence: str, facts: Sequence[str]) -> tuple[str, int]:
    """The sentence with the facts that fit into a short answer, and how many do not."""
    text = sentence
    for number, fact in enumerate(facts):
        room = MOST_CHARACTERS - len(text) - 1
        if len(fact) > room:
            begin = f"{fact[:room]}" if len(fact) > _LONG_FACT and room > _LONG_FACT else ""
            return f"{text} {begin}…", len(facts) - number
        text = f"{text} {fact}"
    return text, 0


def _names(parts: Sequence[Part]) -> list[str]:
    """The names of the parts, each once, with its number of lines if these are several."""
    lines: dict[str, int] = {}
    for part in parts:
        lines[part.name] = lines.get(part.name, 0) + part.lines
    return [name if count == 1 else f"{name} ({count} lines)" for name, count in lines.items()]
