"""The options of a verb, and the terms that they stand for, both made from the declaration of the terms."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from airflow_streamstate.cli.options import Callback, Seconds, option, options
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.terms.declaration import Term, terms_of

Terms = TypeVar("Terms")


def term_options(cls: type, verb: str = "") -> Callable[[Callback], Callback]:
    """An option for each term of a class.

    Args:
        verb: only for the terms that this verb takes, too.
    """
    return options(*map(_option, terms_of(cls, verb)))


def terms_given(cls: type[Terms], given: Mapping[str, Any], **fixed: Any) -> Terms:
    """The terms of the values of these options; a verb that does not take a term has its default.

    Args:
        fixed: terms that the verb decides itself.

    Raises:
        InvalidRequestError: a term is wrong, or contradicts another.
    """
    values = {one.name: _value(one, given[one.name]) for one in terms_of(cls) if one.name in given}
    return cls(**{**values, **fixed})


def _option(one: Term) -> Callable[[Any], Any]:
    text = one.help_for(_long_name)
    attributes: dict[str, Any] = {
        "heading": one.declared.heading,
        "help": f"{text[:1].upper()}{text[1:]}.",
        "default": one.default,
    }
    if one.kind == "flag":
        return option(one.flag, one.name, is_flag=True, **attributes)
    if one.kind in ("texts", "command"):
        attributes |= {"multiple": True} if one.kind == "texts" else {"default": ""}
    elif one.default is not None:
        attributes["show_default"] = True
    if one.kind == "texts":
        attributes["help"] += " Repeatable."
    elif one.kind == "command":
        attributes["help"] += " One line, split as by a shell."
    return option(one.flag, one.name, type=_type(one), metavar=one.metavar or None, **attributes)


def _type(one: Term) -> Any:
    if one.kind == "choice":
        return click.Choice(one.choices)
    if one.kind == "seconds":
        return Seconds(*one.bounds)
    if one.kind == "whole":
        return click.IntRange(_bound(one.declared.least), _bound(one.declared.most))
    if one.kind == "number":
        return click.FloatRange(one.declared.least, one.declared.most)
    return str


def _bound(number: float | None) -> int | None:
    return None if number is None else int(number)


def _long_name(one: Term) -> str:
    return one.flag.partition("/")[0]


def _value(one: Term, value: Any) -> Any:
    return _words(value) if one.kind == "command" else value


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidRequestError(
            "this command cannot be split into words", reason=str(error), next_step="Close its quotes."
        ) from None
