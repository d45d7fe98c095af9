"""A term: its type, default, help and bounds, declared once at a field of a frozen dataclass.

The options of the shell (``cli/options.py``), the parameters of operators (``operators/base.py``, and their
source by ``docs/refresh.py``), the fields of files of streams (``declarations/stream_file.py``), the records in the
home and the reference pages are made from it. Standard library alone: the driver's zip has it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.older_python import UNIONS, hints_of
from airflow_streamstate.protocol.codec import MAX_INTEGER, Checked
from airflow_streamstate.protocol.redaction import redact_uri

Kind = Literal["flag", "choice", "seconds", "whole", "number", "text", "texts", "command", "mapping", "lists", "moment",
               "path", "paths", "part"]  # fmt: skip
"""What a user gives. ``command``: the words of one command line. ``mapping``: texts by name. ``lists``: lists of texts
by name. ``path``, ``paths``: local files or folders. ``part``: terms of a different class."""
Surface = Literal["shell", "operators", "files"]
Changes = Literal["", "code", "version", "label", "stream"]
"""What a change of a term makes of a stream that runs. ``code``: other code, so its state is compared. ``version``: the
same code under other terms, so its driver is replaced. ``label``: nothing, and the next version has it. ``stream``: it
is recorded of the stream, and nothing is replaced. ``""``: it is of one order, and not recorded of the stream."""
Retried = Literal["same", "in any order", "freely"]
"""How two tries of one request must agree on it. ``in any order``: a caller's set, whose order another process may not
repeat. ``freely``: a mere permission."""
MOST_SECONDS = 2_592_000.0
"""30 days."""
WORDS = "--"
_TERM = "term"
_UNITS = ("_seconds", "_id")
_METAVARS: dict[Kind, str] = {"seconds": "SECONDS", "whole": "N", "number": "N", "text": "TEXT", "texts": "NAME",
                              "command": "COMMAND", "mapping": "K=V", "lists": "FILE", "moment": "TIMESTAMP",
                              "path": "PATH", "paths": "PATH"}  # fmt: skip
_MOST_SHOWN_BITS = 128
_NUMBERS = ("whole", "number", "seconds")
Default = TypeVar("Default")


class _Required:
    """The default of a term that has none."""


REQUIRED: Any = _Required()


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
    kind: Kind | None
    changes: Changes
    in_shell: bool | str
    in_operators: bool | str
    in_files: bool | str
    names: Mapping[Surface, str]
    part: type | None
    is_secret: bool
    takes_commas: bool
    retried: Retried


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
    kind: Kind | None = None,
    changes: Changes = "",
    in_shell: bool | str = True,
    in_operators: bool | str = True,
    in_files: bool | str = True,
    names: Mapping[Surface, str] = MappingProxyType({}),
    part: type | None = None,
    is_secret: bool = False,
    takes_commas: bool = False,
    retried: Retried = "same",
) -> Default:
    """Declare a field of a frozen dataclass as a term.

    Args:
        default: a mapping is copied for each object; ``REQUIRED``: it has none.
        help: for all surfaces: lower case, no full stop at its end; the first sentence suffices alone. ``{name}`` is
            another term, which each surface calls as its own readers do.
        flag: of the shell; by default the name without its unit. ``WORDS``: it is the words after ``--``. Of a part:
            the option for those of its terms that have none.
        heading: under which ``--help`` of the shell names it; "" for its first screen.
        metavar: of its value in the shell; by default by its type.
        least, most: bounds of a number.
        verbs: that take it in addition to those of its class (``terms_of``).
        kind: what a user gives, if that does not follow from the type of the field: a path of what is recorded by its
            digest, the words of one command line.
        changes: what a change of it makes of a stream that runs.
        in_shell, in_operators, in_files: whether the shell, the operators and files of streams have it; else the reason
            why not, for humans: a file that gives it is refused with it.
        names: its name on a surface where its own cannot be used: an operator's ``owner`` is Airflow's. In files one
            with dots is its place from the top of the file.
        part: the class whose values by name it has, if the type of the field does not name it.
        is_secret: its values are shown nowhere.
        takes_commas: in the shell its values may also be one value with commas, as of spark-submit.
        retried: how two tries of one request must agree on it.
    """
    declared = Declared(
        help, flag, heading, metavar, least, most, tuple(verbs), "part" if part else kind, changes, in_shell,
        in_operators, in_files, names, part, is_secret, takes_commas, retried,
    )  # fmt: skip
    metadata = {_TERM: declared}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)  # type: ignore[no-any-return]  # as dataclasses do
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)  # type: ignore[return-value]  # as above
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Term:
    """One term of a class.

    Attributes:
        of: the class.
        hint: its annotation, without None.
        default: None where ``is_required``.
        is_optional: None is a value: not set.
        is_required: it has no default.
        choices: the words that it may have; () for any value.
        checks: what its type in ``protocol.codec`` requires; of a list what that of its items requires, of a mapping
            what that of its names requires.
    """

    of: type
    name: str
    kind: Kind
    hint: Any
    default: Any
    is_optional: bool
    is_required: bool
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
    def part(self) -> type:
        """The class of its terms, if its kind is ``part``."""
        return self.declared.part or typing.cast(type, self.hint)

    @property
    def is_number(self) -> bool:
        """Whether it is a whole number, a number or one of seconds."""
        return self.kind in _NUMBERS

    def name_on(self, surface: Surface) -> str:
        """Its name there; in the shell that of its value, see ``flag``."""
        return self.declared.names.get(surface, self.name)

    @property
    def metavar(self) -> str:
        """How the shell names its value; "" for a flag or a choice."""
        return self.declared.metavar or _METAVARS.get(self.kind, "")

    def problem(self, value: Any) -> str:
        """Why it cannot have this value, and what it can have; "" for nothing."""
        if value is None and self.is_optional:
            return ""
        if not self._is_of_its_kind(value):
            near = get_close_matches(str(value), self.choices, 1)
            return f"{f'Did you mean {near[0]}? ' if near else ''}Use {self.range_text}."
        items = value if isinstance(value, (tuple, Mapping)) else (value,)
        for check in self.checks:
            if not all(map(check.fits, items)):
                return f"Use {check.what}."
        if not self.is_number:
            return ""
        least, most = self.bounds
        if not least <= value <= most:
            return f"Use {self.range_text}."
        return f"Use {MAX_INTEGER:,} at most." if self.kind == "whole" and abs(value) > MAX_INTEGER else ""

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
        if self.is_number:
            least, most = map(_number_text, self.bounds)
            if least == most == "":
                return _FORMS[self.kind]
            return f"{_FORMS[self.kind]}{f' from {least}' if least else ''}{f' to {most}' if most else ' on'}"
        return _FORMS[self.kind]

    def _is_of_its_kind(self, value: Any) -> bool:
        if self.kind == "choice":
            return value in self.choices
        if self.kind in ("texts", "command"):
            return isinstance(value, tuple) and all(isinstance(one, str) for one in value)
        if self.kind in ("number", "seconds"):
            return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)
        if self.kind == "mapping":
            return isinstance(value, Mapping) and all(isinstance(one, str) for one in (*value, *value.values()))
        if self.kind in ("path", "paths"):
            return True  # what is recorded of a file is not what is given
        if self.kind in ("lists", "part"):
            return isinstance(value, Mapping if self.kind == "lists" or self.declared.part else self.hint)
        return type(value) is {"flag": bool, "whole": int, "text": str, "moment": datetime}[self.kind]

    def help_for(self, name_of: Callable[[Term], str]) -> str:
        """Its help, in which each other term of its class has the name that a surface gives it."""
        return self.declared.help.format(**{one.name: name_of(one) for one in terms_of(self.of)})


def _number_text(number: float) -> str:
    """With its thousands; "" for no bound."""
    if math.isinf(number):
        return ""
    return f"{number:,.0f}" if number == int(number) else f"{number:,.15g}"


_FORMS: dict[Kind, str] = {
    "flag": "true or false", "whole": "a whole number", "number": "a number", "seconds": "a number of seconds",
    "text": "a text", "texts": "a list of texts", "command": "a list of words", "mapping": "texts by name",
    "lists": "lists of texts by name", "moment": "a time with a time zone", "path": "a path",
    "paths": "a list of paths", "part": "values by name",
}  # fmt: skip


def terms_of(cls: type, verb: str = "") -> tuple[Term, ...]:
    """The terms of a class: its own in the order of their declaration, then those of the classes that it inherits from.

    Args:
        verb: only those that this verb takes, too; "" for all.
    """
    found = _terms_of(cls)
    return tuple(one for one in found if not verb or verb in one.declared.verbs)


@functools.cache
def _terms_of(cls: type) -> tuple[Term, ...]:
    hints = hints_of(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    found = []
    for name in dict.fromkeys(name for each in cls.__mro__ for name in vars(each).get("__annotations__", {})):
        declared: Declared | None = fields[name].metadata.get(_TERM) if name in fields else None
        if declared is not None:
            found.append(_term(cls, name, hints[name], fields[name], declared))
    return tuple(found)


def values_of(cls: type, terms: object) -> dict[str, Any]:
    """The values of the terms of a class in an object that has them, too, such as one of a class that inherits it."""
    return {one.name: getattr(terms, one.name) for one in terms_of(cls)}


def check_terms(value: object) -> None:
    """Check each term of a dataclass by its own declaration; for its ``__post_init__``.

    Raises:
        InvalidRequestError: one has a value that it cannot have.
    """
    check_given(type(value), values_of(type(value), value))


def check_given(cls: type, given: Mapping[str, Any]) -> None:
    """Check the values of terms of a class, by name; raises as ``check_terms``."""
    for one in terms_of(cls):
        if one.name in given and (problem := one.problem(given[one.name])):
            facts = {one.name: _shown(given[one.name])}
            raise InvalidRequestError(f"{one.name} cannot have this value", **facts, next_step=problem)


def _is_finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)  # a whole number may be too large for the question


def _shown(value: object) -> object:
    if isinstance(value, int) and value.bit_length() > _MOST_SHOWN_BITS:
        return f"a number of {value.bit_length():,} bits"
    if isinstance(value, (int, float)) and _is_finite(value):
        return value
    if isinstance(value, (tuple, Mapping)):  # of a mapping the names alone: its values may be secrets
        return [_shown(one) for one in value]
    return redact_uri(str(value))[:60]


def check_names(cls: type, given: Iterable[str], message: str) -> None:
    """Check that a class has terms of these names.

    Raises:
        InvalidRequestError: it has not; with this message, and the nearest name.
    """
    known = [one.name for one in terms_of(cls)]
    for name in sorted(set(map(str, given)) - set(known)):
        near = get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise InvalidRequestError(message, name=name[:60], next_step=f"{hint}There are {', '.join(known)}.")


def _term(cls: type, name: str, hint: Any, of: dataclasses.Field[Any], declared: Declared) -> Term:
    given, is_optional = _without_none(hint)
    plain = _plain(given)
    choices = typing.get_args(plain) if typing.get_origin(plain) is Literal else ()
    is_required = of.default is dataclasses.MISSING and of.default_factory is dataclasses.MISSING
    default = None if of.default is dataclasses.MISSING else of.default
    if of.default_factory is not dataclasses.MISSING:
        default = of.default_factory()
    checked = typing.get_args(plain)[0] if typing.get_origin(plain) in (tuple, Mapping) else given
    kind = declared.kind or _kind_of(name, plain)
    return Term(cls, name, kind, plain, default, is_optional, is_required, choices, _checks(checked), declared)


def _kind_of(name: str, hint: Any) -> Kind:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return "choice"
    if origin is tuple:
        return "texts"
    if origin is Mapping:
        return "lists" if typing.get_origin(typing.get_args(hint)[1]) is tuple else "mapping"
    if dataclasses.is_dataclass(hint):
        return "part"
    if hint is float:
        return "seconds" if name.endswith("_seconds") else "number"
    kinds: dict[Any, Kind] = {bool: "flag", int: "whole", str: "text", datetime: "moment"}
    return kinds[hint]


def _checks(hint: Any) -> tuple[Checked, ...]:
    is_checked = typing.get_origin(hint) is typing.Annotated
    return tuple(one for one in hint.__metadata__ if isinstance(one, Checked)) if is_checked else ()


def _plain(hint: Any) -> Any:
    return hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in UNIONS:
        return hint, False
    several = [one for one in typing.get_args(hint) if one is not type(None)]
    if len(several) != 1:
        raise TypeError(f"a term has one type, or None: {hint}")
    return several[0], True
