"""Write the terms of the operators into their source, for ``docs/refresh.py``. A test fails where it is stale.

An operator with ``taken`` gets, from the declaration of these terms (``protocol/terms``), what stands between
``# terms`` and ``# end of terms`` in its ``__init__``, first the parameters, then their assignments, and the paragraph
of its docstring whose ``:param:`` lines are those of terms.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_streamstate import operators
from airflow_streamstate.operators.base import default_of, fields_of, is_removable
from airflow_streamstate.protocol.terms.declaration import Term, terms_of

WIDTH = 120
REGION = re.compile(r"^(?P<indent> +)# terms\n(?P<lines>.*?)^ +# end of terms\n", re.DOTALL | re.MULTILINE)
PARAGRAPH = re.compile(r"(?:^    :param \w+:.*\n(?:^        .*\n)*)+", re.MULTILINE)
HINTS = {
    "flag": "bool | str", "choice": "str", "seconds": "float | str", "whole": "int | str", "number": "float | str",
    "text": "str", "texts": "Sequence[str] | str", "command": "Sequence[str] | str", "paths": "Sequence[str] | str",
    "mapping": "Mapping[str, {of}] | str", "lists": "Mapping[str, Sequence[str]] | str", "moment": "datetime | str",
    "path": "str | Path", "part": "Mapping[str, Any] | str",
}  # fmt: skip
NOTHING = ("``{}``", '``""``')
"""A mapping, and a text."""


def parameter(one: Term) -> str:
    """The parameter of a term in a signature; rendered fields may be text."""
    default = default_of(one)
    hint = HINTS[one.kind].format(of="Any" if {object, Any} & set(typing.get_args(one.hint)) else "str")
    if one.kind == "part" and one.declared.part is None:
        hint = f"{one.part.__name__} | {hint}"
    may_be_none = not one.is_required and default in (None, "", ())
    text = f'"{default}"' if isinstance(default, str) else literal(default)
    return f"{name_of(one)}: {hint}{' | None' if may_be_none else ''}{'' if one.is_required else f' = {text}'},"


def assignment(one: Term) -> str:
    """The assignment of a parameter; Airflow renders a path only as text, and finds the task whose result it is."""
    name = name_of(one)
    if one.kind != "path":
        return f"self.{name} = {name}"
    return f"self.{name} = str({name}) if isinstance({name}, Path) else {name}"


def name_of(one: Term) -> str:
    """The name of the parameter."""
    return one.name_on("operators")


def literal(value: object) -> str:
    """A value as source has it."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= 1_000:
        return f"{value:_}"
    return repr(value)


def described(one: Term) -> str:
    """The ``:param:`` line of a term."""
    text = one.help_for(lambda other: f"``{name_of(other)}``")
    if not all(word in text for word in one.choices):
        text += f": {one.range_text}"
    text += f"{values_of(one)}."
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text)
    if is_removable(one):
        text += f" By default the stream keeps its own; {NOTHING[one.kind == 'text']} removes it."
    elif one.declared.changes == "stream":
        text += " What is not given stays as the stream has it."
    lines = textwrap.wrap(
        f":param {name_of(one)}: {text} (templated)",
        WIDTH,
        initial_indent="    ",
        subsequent_indent="        ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "".join(f"{line}\n" for line in lines)


def values_of(one: Term) -> str:
    """The values that a part has by name, with the words that each of them may be."""
    if one.kind != "part":
        return ""
    names = ", ".join(f"`{each.name}`{f' ({each.range_text})' if each.choices else ''}" for each in terms_of(one.part))
    if one.declared.part:
        return f". Values by name: {names}"
    return f". An `{one.part.__name__}`, or values by name, in which what is not given has its default: {names}"


def renewed(source: str, taken: Sequence[Term]) -> str:
    """The source of such an operator, with its terms as they are declared now."""
    fields = fields_of(taken)
    regions = iter((tuple(map(parameter, fields)), tuple(map(assignment, fields))))

    def region(found: re.Match[str]) -> str:
        indent, lines = found["indent"], next(regions)
        return "".join(f"{indent}{line}\n" for line in ("# terms", *lines, "# end of terms"))

    names = set(map(name_of, fields))

    def paragraph(found: re.Match[str]) -> str:
        is_of_terms = not names.isdisjoint(re.findall(r"^    :param (\w+):", found[0], re.MULTILINE))
        return "".join(map(described, fields)) if is_of_terms else found[0]

    return PARAGRAPH.sub(paragraph, REGION.sub(region, source))


def renewed_modules() -> dict[Path, str]:
    """Each module that has an operator with terms, as it is with them."""
    found = {}
    for each in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        module = importlib.import_module(each.name)
        own = {name: cls for name, cls in vars(module).items() if inspect.isclass(cls) and cls.__module__ == each.name}
        taken = {name: vars(cls)["taken"] for name, cls in own.items() if vars(cls).get("taken")}
        if taken:
            path = Path(str(module.__file__))
            found[path] = renewed_classes(path.read_text(encoding="utf-8"), taken)
    return found


def renewed_classes(source: str, taken: Mapping[str, Sequence[Term]]) -> str:
    """The source of a module, with the terms of these classes as they are declared now."""
    lines = source.splitlines(keepends=True)
    for node in reversed([one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)]):
        if node.name in taken:
            first, last = node.lineno - 1, node.end_lineno
            lines[first:last] = [renewed("".join(lines[first:last]), taken[node.name])]
    return "".join(lines)


def main() -> int:
    """Rewrite the modules of the operators; returns 0."""
    for path, source in renewed_modules().items():
        path.write_text(source, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
