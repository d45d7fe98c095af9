"""The words of a command line that give terms their values again, as the shell has options for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.terms.declaration import WORDS, Term, terms_of
from airflow_streamstate.protocol.terms.version import Artifact


@dataclass(frozen=True)
class CommandLine:
    """What gives an object its values again.

    Attributes:
        options: with their values, in the order of the terms.
        words: those after ``--``.
        left_out: by option, the names of its files: where they came from is not recorded.
    """

    options: tuple[str, ...]
    words: tuple[str, ...]
    left_out: Mapping[str, tuple[str, ...]]


def command_line(terms: object, base: object | None = None, verb: str = "") -> CommandLine:
    """The command line of what an object has otherwise than another of its class.

    Args:
        base: what the verb has where no option is given; None for the defaults of the terms.
        verb: only of the terms that this verb takes.
    """
    values = [(one, getattr(terms, one.name)) for one in terms_of(type(terms), verb)]
    changed = [(one, value) for one, value in values if value != _base(one, base)]
    words = tuple(word for one, value in changed if one.flag == WORDS for word in value)
    options = tuple(word for one, value in changed if one.flag != WORDS for word in _options(one, value, base))
    left_out = {one.flag: names for one, value in changed if (names := _file_names(one, value))}
    return CommandLine(options, words, left_out)


def _base(one: Term, base: object | None) -> Any:
    return one.default if base is None else getattr(base, one.name)


def _options(one: Term, value: Any, base: object | None) -> Iterator[str]:
    if one.kind == "part":
        yield from _options_of_part(one, value, _base(one, base))
    elif one.declared.in_shell is True:
        flag, _, off = one.flag.partition("/")
        if one.kind == "flag":
            yield flag if value else off
            return
        for text in _texts(one, value):
            yield from (flag, text)


def _options_of_part(part: Term, value: Any, base: Any) -> Iterator[str]:
    """Of its terms; of one without an option of its own, as ``NAME=VALUE`` of the part's."""
    for one in terms_of(part.part):
        given = getattr(value, one.name)
        if given == _base(one, base):
            continue
        if one.declared.in_shell is True:
            yield from _options(one, given, base)
        elif part.declared.flag and given is not None:
            yield from (part.flag, f"{one.name}={_text(given)}")


def _texts(one: Term, value: Any) -> Iterator[str]:
    if one.kind == "lists" or value is None:
        return  # a file, or nothing
    if one.kind == "mapping":
        yield from (f"{name}={_text(each)}" for name, each in value.items())
        return
    several = value if isinstance(value, tuple) else (value,)
    yield from (_text(each) for each in several if not isinstance(each, Artifact))


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | Mapping):
        return json.dumps(value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _file_names(one: Term, value: Any) -> tuple[str, ...]:
    several = value if isinstance(value, tuple) else (value,)
    return () if one.kind == "part" else tuple(each.name for each in several if isinstance(each, Artifact))
