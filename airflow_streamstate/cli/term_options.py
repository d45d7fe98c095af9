"""The options of a verb, and the terms that they stand for, both made from the declaration of the terms."""

from __future__ import annotations

import shlex
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from airflow_streamstate.cli.offsets import read_offsets_file
from airflow_streamstate.cli.options import Callback, Moment, Seconds, key_values, option, options, script_arguments
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.options import plain_options
from airflow_streamstate.protocol.terms.declaration import WORDS, Term, terms_of

Terms = TypeVar("Terms")
_BY_DEFAULT = ". By default "
"""What follows is of a new version, and not of what stays."""
_REPEATED = ("texts", "mapping", "paths")


def term_options(
    cls: type,
    verb: str = "",
    *,
    stays: bool = False,
    heading: str | None = None,
    has_all: bool = False,
    needs_required: bool = False,
) -> Callable[[Callback], Callback]:
    """An option for each term of a class that the shell has; of a part one for each of its terms, without a default.

    Args:
        verb: only for the terms that this verb takes, too.
        stays: what is not given stays as it is, so no option has a default; the help names that of a new stream.
        heading: of all of them in the help, in place of the declared ones.
        has_all: also for those that are otherwise values of the option of their part.
        needs_required: click refuses a command without a term that is required; else the verb says what is missing.
    """
    several = terms_of(cls, verb)
    if not has_all:
        several = tuple(one for one in several if one.declared.in_shell is True)
    return options(
        *(
            each
            for one in several
            for each in _options(one, _Wanted(stays=stays, heading=heading, needs_required=needs_required))
        )
    )


def terms_given(cls: type[Terms], given: Mapping[str, Any], **fixed: Any) -> Terms:
    """The terms of the values of these options; a verb that does not take a term has its default.

    Args:
        fixed: terms that the verb decides itself.

    Raises:
        InvalidRequestError: a term is wrong, or contradicts another.
    """
    return cls(**{**values_given(cls, given), **fixed})


def values_given(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """What these options give of a class, by the names of its terms; of a part, the same of its class. What is not
    given is left out.

    Raises:
        UsageError: a file cannot be read, or a setting is not one.
        InvalidRequestError: a value cannot be read.
    """
    found = {}
    for one in terms_of(cls):
        name = one.name_on("shell")
        value = _part_given(one, given) if one.kind == "part" else given.get(name)
        if value == "" and one.kind == "path":
            raise click.UsageError(f"{_long_name(one)} is empty: give a path, or leave it out.")
        if _is_given(one, value):
            found[one.name] = _READERS.get(one.kind, _as_it_is)(one, value)
    return found


def split(values: tuple[str, ...]) -> tuple[str, ...]:
    """The parts of an option that is repeated, or given with commas."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


# options


@dataclass(frozen=True)
class _Wanted:
    """As of ``term_options``; ``of_part``: the option is of a term of a part."""

    stays: bool
    heading: str | None
    of_part: bool = False
    needs_required: bool = False

    def heading_of(self, one: Term) -> str:
        return one.declared.heading if self.heading is None else self.heading


def _options(one: Term, wanted: _Wanted) -> Iterator[Callable[[Any], Any]]:
    if one.flag == WORDS:
        yield script_arguments
    elif one.kind != "part":
        yield _option(one, wanted)
    else:
        for each in terms_of(one.part):
            if each.declared.in_shell is True:
                yield _option(each, replace(wanted, of_part=True))
        if one.declared.flag:
            yield _rest_option(one, wanted)


def _option(one: Term, wanted: _Wanted) -> Callable[[Any], Any]:
    has_default = not (wanted.stays or wanted.of_part)
    attributes: dict[str, Any] = {
        "heading": wanted.heading_of(one),
        "help": f"{_sentences(one, stays=wanted.stays)}{_form_of(one)}",
    }
    if wanted.needs_required and one.is_required:
        attributes["required"] = True
    else:
        attributes["default"] = one.default if has_default and one.default != "" else None
    if one.kind == "flag":
        attributes["default"] = one.default if has_default or not _has_two_forms(one) else None
        return option(one.flag, one.name_on("shell"), is_flag=True, **attributes)
    if one.kind in (*_REPEATED, "command", "lists"):
        attributes |= {"multiple": one.kind in _REPEATED, "default": None}
    elif one.default not in (None, ""):
        attributes |= {"show_default": True} if has_default else {"help": f"{attributes['help']}{_default_of(one)}"}
    if one.kind == "mapping":
        attributes["callback"] = key_values
    return option(one.flag, one.name_on("shell"), type=_type(one), metavar=one.metavar or None, **attributes)


def _rest_option(part: Term, wanted: _Wanted) -> Callable[[Any], Any]:
    """The option for the terms of a part that have no option of their own."""
    return option(
        part.flag,
        part.name_on("shell"),
        multiple=True,
        default=None,
        metavar=part.metavar,
        callback=key_values,
        heading=wanted.heading_of(part),
        help=f"{_sentences(part, stays=False)[:-1]}: {', '.join(_rest_of(part))}. Repeatable.",
    )


def _rest_of(part: Term) -> dict[str, Term]:
    return {one.name: one for one in terms_of(part.part) if one.declared.in_shell is not True}


def _sentences(one: Term, *, stays: bool) -> str:
    text = one.help_for(_long_name)
    if stays:
        text, _, _ = text.partition(_BY_DEFAULT)
    return f"{text[:1].upper()}{text[1:]}."


def _form_of(one: Term) -> str:
    """How its value is written, where that does not go without saying."""
    if one.declared.takes_commas:
        return " With commas or repeated."
    if _has_facts(one):
        return " Lists and objects in JSON, @FILE for a file's text. Repeatable."
    forms = {"command": "One line, split as by a shell.", "lists": "A JSON file."} | dict.fromkeys(
        _REPEATED, "Repeatable."
    )
    return f" {forms[one.kind]}" if one.kind in forms else ""


def _default_of(one: Term) -> str:
    default = f"{one.default:,.15g}" if one.is_number else f"`{one.default}`"
    return f" The default of a new stream is {default}."


def _type(one: Term) -> Any:
    if one.kind == "choice":
        return click.Choice(one.choices)
    if one.kind == "seconds":
        return Seconds(*one.bounds)
    if one.kind == "whole":
        return click.IntRange(_bound(one.declared.least), _bound(one.declared.most))
    if one.kind == "number":
        return click.FloatRange(one.declared.least, one.declared.most)
    return Moment() if one.kind == "moment" else str


def _bound(number: float | None) -> int | None:
    return None if number is None else int(number)


def _long_name(one: Term) -> str:
    return one.flag.partition("/")[0]


def _has_two_forms(one: Term) -> bool:
    return "/" in one.flag


def _has_facts(one: Term) -> bool:
    """Whether its values by name may be lists and objects."""
    return one.kind == "mapping" and typing.get_args(one.hint)[1] is object


# values


def _is_given(one: Term, value: Any) -> bool:
    if value is None or value == () or value == {}:
        return False
    if value is False:
        return _has_two_forms(one)
    return value != "" or one.kind in ("text", "choice")


def _part_given(part: Term, given: Mapping[str, Any]) -> dict[str, Any]:
    if part.declared.in_shell is not True:
        return {}
    found = values_given(part.part, given)
    texts = given.get(part.name_on("shell")) if part.declared.flag else None
    return {**found, **_rest_given(part, texts or {})}


def _rest_given(part: Term, texts: Mapping[str, str]) -> dict[str, Any]:
    known = _rest_of(part)
    if unknown := sorted(set(texts) - set(known)):
        raise click.UsageError(f"no such setting: {', '.join(unknown)}; there are {', '.join(known)}")
    try:
        return {name: int(text) if known[name].kind == "whole" else float(text) for name, text in texts.items()}
    except ValueError:
        raise click.UsageError("a setting is a number of seconds, or of bytes: NAME=VALUE") from None


def _as_it_is(_one: Term, value: Any) -> Any:
    return value


def _words(_one: Term, command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidRequestError(
            "this command cannot be split into words", reason=str(error), next_step="Close its quotes."
        ) from None


def _texts(one: Term, values: tuple[str, ...]) -> tuple[str, ...]:
    return split(values) if one.declared.takes_commas else tuple(values)


def _paths(one: Term, values: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(map(Path, _texts(one, values)))


def _path(one: Term, value: str) -> Path:
    """A path that is recorded as it is means the same from any folder."""
    return Path(value).expanduser().absolute() if one.hint is str else Path(value)


def _offsets(one: Term, path: str) -> dict[str, tuple[str, ...]]:
    return read_offsets_file(_long_name(one), path)


def _mapping(one: Term, texts: Mapping[str, str]) -> Mapping[str, object]:
    if not _has_facts(one):
        return texts
    return plain_options({name: _text_or_file(one, name, text) for name, text in texts.items()})


def _text_or_file(one: Term, name: str, text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8"
        raise click.UsageError(f"{_long_name(one)}: the file of {name} cannot be read: {reason}.") from None


_READERS: Mapping[str, Callable[[Term, Any], Any]] = {
    "command": _words,
    "texts": _texts,
    "path": _path,
    "paths": _paths,
    "lists": _offsets,
    "mapping": _mapping,
}
"""By kind: what makes the value of a term of what the option has."""
