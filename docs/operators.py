"""Write the terms of the operators into their source, for ``docs/refresh.py``. A test fails where it is stale.

An operator with ``taken`` gets, from the declaration of these terms (``protocol/terms``), what stands between
``# terms`` and ``# end of terms`` in its ``__init__``, first the parameters, then their assignments, and the paragraph
of its docstring whose ``:param:`` lines are those of terms.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from airflow_streamstate import operators
from airflow_streamstate.protocol.terms.declaration import Term

WIDTH = 120
REGION = re.compile(r"^(?P<indent> +)# terms\n(?P<lines>.*?)^ +# end of terms\n", re.DOTALL | re.MULTILINE)
PARAGRAPH = re.compile(r"(?:^    :param \w+:.*\n(?:^        .*\n)*)+", re.MULTILINE)
HINTS = {
    "flag": "bool | str", "choice": "str", "seconds": "float | str", "whole": "int | str", "number": "float | str",
    "text": "str", "texts": "Sequence[str] | str", "command": "Sequence[str] | str",
}  # fmt: skip


def parameter(one: Term) -> str:
    """The parameter of a term in a signature; rendered fields may be text."""
    text = f'"{one.default}"' if isinstance(one.default, str) else literal(one.default)
    return f"{one.name}: {HINTS[one.kind]}{' | None' if one.is_optional else ''} = {text},"


def literal(value: object) -> str:
    """A value as source has it."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= 1_000:
        return f"{value:_}"
    return repr(value)


def described(one: Term) -> str:
    """The ``:param:`` line of a term."""
    text = one.help_for(lambda other: f"``{other.name}``")
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text)
    lines = textwrap.wrap(
        f":param {one.name}: {text}. (templated)",
        WIDTH,
        initial_indent="    ",
        subsequent_indent="        ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "".join(f"{line}\n" for line in lines)


def renewed(source: str, taken: Sequence[Term]) -> str:
    """The source of a module with one such operator, with its terms as they are declared now."""
    regions = iter((tuple(map(parameter, taken)), tuple(f"self.{one.name} = {one.name}" for one in taken)))

    def region(found: re.Match[str]) -> str:
        indent, lines = found["indent"], next(regions)
        return "".join(f"{indent}{line}\n" for line in ("# terms", *lines, "# end of terms"))

    names = {one.name for one in taken}

    def paragraph(found: re.Match[str]) -> str:
        is_of_terms = not names.isdisjoint(re.findall(r"^    :param (\w+):", found[0], re.MULTILINE))
        return "".join(described(one) for one in taken) if is_of_terms else found[0]

    return PARAGRAPH.sub(paragraph, REGION.sub(region, source))


def renewed_modules() -> dict[Path, str]:
    """Each module that has an operator with terms, as it is with them."""
    found = {}
    for each in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        module = importlib.import_module(each.name)
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == each.name and "taken" in vars(cls):
                path = Path(str(module.__file__))
                found[path] = renewed(path.read_text(encoding="utf-8"), cls.taken)
    return found


def main() -> int:
    """Rewrite the modules of the operators; returns 0."""
    for path, source in renewed_modules().items():
        path.write_text(source, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
