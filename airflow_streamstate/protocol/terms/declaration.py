"""A term: its type, default, help and bounds, declared once at a field of a frozen dataclass.

The options of the shell (``cli/term_options.py``), the parameters of operators (``operators/term_fields.py``, and their
source by ``docs/refresh.py``), the fields of files of streams (``declarations/term_parts.py``), the records in the
home and the reference pages are made from it. Standard library alone: the driver's zip has it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.fields import Checked

Kind = Literal["flag", "choice", "seconds", "whole", "number", "text", "texts", "command"]
"""What a value of the term is; ``command``: the words of one command line."""
MOST_SECONDS = 2_592_000.0
"""30 days."""
_TERM = "term"
_UNITS = ("_seconds", "_id")
_METAVARS: dict[Kind, str] = {"seconds": "SECONDS", "whole": "N", "number": "N", "text": "TEXT", "texts": "NAME",
                              "command": "COMMAND"}  # fmt: skip
Default = TypeVar("Default")


@dataclasses.dataclass(frozen=True)
class Declared:
    """What ``term`` keeps at a field; its arguments are described there."""

    help: str
    flag: str
    heading: str
    metavar: str
    least: float | None
    most: float | None
    verbs: tuple[str, ...]
    file: bool | str
    is_command: bool


def term(
    default: Default,
    *,
    help: str,
    flag: str = "",
    heading: str = "",
    metavar: str = "",
    least: float | None = None,
    most: float | None = None,
    verbs: Sequence[str] = (),
    file: bool | str = True,
    is_command: bool = False,
) -> Default:
    """Declare a field of a frozen dataclass as a term.

    Args:
        help: for all surfaces: lower case, no full stop at its end; the first sentence says it all. ``{name}`` is
            another term, which each surface calls as its own readers do.
        flag: of the shell; by default the name without its unit.
        heading: under which ``--help`` of the shell names it; "" for its first screen.
        metavar: of its value in the shell; by default by its type.
        least, most: bounds of a number.
        verbs: that take it in addition to those of its class (``terms_of``).
        file: a field of files of streams; else the reason why it is none.
        is_command: several words are one command line.
    """
    declared = Declared(help, flag, heading, metavar, least, most, tuple(verbs), file, is_command)
    return dataclasses.field(default=default, metadata={_TERM: declared})


@dataclasses.dataclass(frozen=True)
class Term:
    """One term of a class.

    Attributes:
        of: the class.
        hint: its annotation, without None.
        is_optional: None is a value: not set.
        choices: the words that it may have; () for any value.
        checks: what its type in ``protocol.fields`` says, of a list what that of its items says.
    """

    of: type
    name: str
    kind: Kind
    hint: Any
    default: Any
    is_optional: bool
    choices: tuple[str, ...]
    checks: tuple[Checked, ...]
    declared: Declared

    @property
    def flag(self) -> str:
        """The option of the shell, as click takes it."""
        if self.declared.flag:
            return self.declared.flag
        name = self.name
        for unit in _UNITS:
            name = name.removesuffix(unit)
        name = name.replace("_", "-")
        return f"--{name}/--no-{name}" if self.kind == "flag" and self.default is True else f"--{name}"

    @property
    def metavar(self) -> str:
        """How the shell names its value; "" for a flag or a choice."""
        return self.declared.metavar or _METAVARS.get(self.kind, "")

    def problem(self, value: Any) -> str:
        """Why it cannot have this value, and what it can have; "" for nothing."""
        if value is None and self.is_optional:
            return ""
        if not self._is_of_its_kind(value):
            return f"Use {self.range_text}."
        items = value if isinstance(value, tuple) else (value,)
        for check in self.checks:
            if not all(map(check.fits, items)):
                return f"Use {check.what}."
        if self.kind not in ("whole", "number", "seconds"):
            return ""
        least, most = self.bounds
        return "" if least <= value <= most else f"Use {self.range_text}."

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most that a number may be."""
        least, most = self.declared.least, self.declared.most
        if self.kind == "seconds":
            return 1.0 if least is None else least, MOST_SECONDS if most is None else most
        return -math.inf if least is None else least, math.inf if most is None else most

    @property
    def range_text(self) -> str:
        """What its value may be."""
        if self.choices:
            return " or ".join(filter(None, (", ".join(self.choices[:-1]), self.choices[-1])))
        if self.kind in ("whole", "number", "seconds"):
            least, most = self.bounds
            unit = " seconds" if self.kind == "seconds" else ""
            end = " or more" if most == math.inf else f" to {most:,.15g}"
            return f"{least:,.15g}{end}{unit}"
        return {"flag": "true or false", "text": "a text", "texts": "a list of texts", "command": "a list of words"}[
            self.kind
        ]

    def _is_of_its_kind(self, value: Any) -> bool:
        if self.kind == "choice":
            return value in self.choices
        if self.kind in ("texts", "command"):
            return isinstance(value, tuple) and all(isinstance(one, str) for one in value)
        if self.kind in ("number", "seconds"):
            return isinstance(value, int | float) and not isinstance(value, bool)
        return type(value) is {"flag": bool, "whole": int, "text": str}[self.kind]

    def help_for(self, name_of: Callable[[Term], str]) -> str:
        """Its help, in which each other term of its class has the name that a surface gives it."""
        return self.declared.help.format(**{one.name: name_of(one) for one in terms_of(self.of)})


def terms_of(cls: type, verb: str = "") -> tuple[Term, ...]:
    """The terms of a class: its own in the order of their declaration, then those of the classes that it inherits from.

    Args:
        verb: only those that this verb takes, too; "" for all.
    """
    found = _terms_of(cls)
    return tuple(one for one in found if not verb or verb in one.declared.verbs)


@functools.cache
def _terms_of(cls: type) -> tuple[Term, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    found = []
    for name in dict.fromkeys(name for each in cls.__mro__ for name in vars(each).get("__annotations__", {})):
        declared: Declared | None = fields[name].metadata.get(_TERM) if name in fields else None
        if declared is not None:
            found.append(_term(cls, name, hints[name], fields[name].default, declared))
    return tuple(found)


def values_of(cls: type, terms: object) -> dict[str, Any]:
    """The values of the terms of a class in an object that has them, too, such as one of a class that inherits it."""
    return {one.name: getattr(terms, one.name) for one in terms_of(cls)}


def check_terms(value: object) -> None:
    """Check each term of a dataclass by its own declaration; for its ``__post_init__``.

    Raises:
        InvalidRequestError: one has a value that it cannot have.
    """
    for one in terms_of(type(value)):
        given = getattr(value, one.name)
        if problem := one.problem(given):
            shown = given if isinstance(given, int | float | None) else str(given)[:60]
            raise InvalidRequestError(f"{one.name} cannot have this value", **{one.name: shown}, next_step=problem)


def _term(cls: type, name: str, hint: Any, default: Any, declared: Declared) -> Term:
    given, is_optional = _without_none(hint)
    plain = _plain(given)
    is_list = typing.get_origin(plain) is tuple
    choices = typing.get_args(plain) if typing.get_origin(plain) is Literal else ()
    checks = _checks(typing.get_args(plain)[0] if is_list else given)
    return Term(cls, name, _kind_of(name, plain, declared), plain, default, is_optional, choices, checks, declared)


def _kind_of(name: str, hint: Any, declared: Declared) -> Kind:
    if typing.get_origin(hint) is Literal:
        return "choice"
    if typing.get_origin(hint) is tuple:
        return "command" if declared.is_command else "texts"
    if hint is float:
        return "seconds" if name.endswith("_seconds") else "number"
    kinds: dict[Any, Kind] = {bool: "flag", int: "whole", str: "text"}
    return kinds[hint]


def _checks(hint: Any) -> tuple[Checked, ...]:
    is_checked = typing.get_origin(hint) is typing.Annotated
    return tuple(one for one in hint.__metadata__ if isinstance(one, Checked)) if is_checked else ()


def _plain(hint: Any) -> Any:
    return hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    several = [one for one in typing.get_args(hint) if one is not type(None)]
    if len(several) != 1:
        raise TypeError(f"a term has one type, or None: {hint}")
    return several[0], True
