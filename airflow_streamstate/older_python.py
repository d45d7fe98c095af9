"""What Python 3.10 brought, for what drivers run: vendors' images have Python 3.9. Newer ones have their own."""

from __future__ import annotations

import ast
import functools
import itertools
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Union

IS_NEWER = sys.version_info >= (3, 10)
UNIONS = tuple(filter(None, (Union, getattr(types, "UnionType", None))))
"""What ``typing.get_origin`` gives for ``A | B``."""
_UNION, _NOTHING = "_Union_of_annotations", object()


def _strictly(*iterables: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for together in itertools.zip_longest(*iterables, fillvalue=_NOTHING):
        if any(one is _NOTHING for one in together):
            raise ValueError("zipped() arguments are of different lengths")
        yield together


def _pairs(iterable: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    firsts, seconds = itertools.tee(iterable)
    next(seconds, None)
    return zip(firsts, seconds)


def _standard_modules() -> frozenset[str]:
    import pkgutil
    import sysconfig

    folders = sorted({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
    found = pkgutil.iter_modules([*folders, *(f"{folder}/lib-dynload" for folder in folders)])
    return frozenset({*sys.builtin_module_names, *(one.name for one in found)})


if TYPE_CHECKING:
    from itertools import pairwise as pairwise

    zipped = zip
    """As ``zip(strict=True)``."""
else:
    zipped = functools.partial(zip, strict=True) if IS_NEWER else _strictly
    pairwise = getattr(itertools, "pairwise", _pairs)


def with_newer(**options: bool) -> Mapping[str, bool]:
    """Arguments of ``dataclasses.dataclass`` that Python 3.9 does not know, and does without."""
    return options if IS_NEWER else {}


@functools.cache
def standard_modules() -> frozenset[str]:
    """The names of the modules of the standard library."""
    return getattr(sys, "stdlib_module_names", None) or _standard_modules()


def hints_of(cls: type) -> dict[str, Any]:
    """The types of the fields of a class, those that it inherits too: as ``typing.get_type_hints`` with extras."""
    return typing.get_type_hints(cls, include_extras=True) if IS_NEWER else read_hints(cls)


def read_hints(cls: type) -> dict[str, Any]:
    """``hints_of`` where the types of Python know no ``|``."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        names = {**vars(base), **vars(sys.modules[base.__module__]), _UNION: Union}
        for name, text in vars(base).get("__annotations__", {}).items():
            found[name] = _evaluated(text, names) if isinstance(text, str) else text
    return found


def _evaluated(text: str, names: dict[str, Any]) -> Any:
    tree = ast.fix_missing_locations(_Unions().visit(ast.parse(text, mode="eval")))
    found = eval(compile(tree, "<annotation>", "eval"), names)  # noqa: S307  # what Python itself does with annotations
    return type(None) if found is None else found


class _Unions(ast.NodeTransformer):
    """``A | B`` as ``Union[A, B]``."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        both = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name(_UNION, ast.Load()), both, ast.Load())
