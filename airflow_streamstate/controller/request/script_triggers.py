"""Triggers that a script's text asks for and that know no barrier: refused before a driver is launched.

Only a call that can mean nothing else is refused; what is decided while the script runs is the driver's to refuse.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from airflow_streamstate.checkpoint.guards import refuse_trigger
from airflow_streamstate.controller.request.code_files import CodeFile
from airflow_streamstate.controller.request.script_modules import tree_of

_WITHOUT_BARRIER = ("continuous", "realTime")


def refuse_triggers(script: Path, modules: Iterable[CodeFile]) -> None:
    """Refuse a script that asks for such a trigger, itself or in a module of its own.

    A function that nothing in these files names is taken for one of another script.

    Raises:
        UnsupportedCheckpointError: names the file and the line.
    """
    files = [(script.name, script), *((module.name, module.path) for module in modules)]
    trees = [(name, tree) for name, path in files if (tree := tree_of(path)) is not None]
    named = {text for _, tree in trees for text in _names_in(tree)}
    for name, tree in trees:
        for line, trigger in _calls_in(tree, named):
            refuse_trigger(
                trigger,
                f"; a call of `trigger` that this script does not reach is let pass as `trigger(**{{'{trigger}': …}})`",
                place=f"{name}, line {line}",
            )


def _names_in(tree: ast.Module) -> Iterator[str]:
    """What the code names, but for the names that it only defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _calls_in(node: ast.AST, named: set[str]) -> Iterator[tuple[int, str]]:
    """Line and trigger of each such call, in the order of the text."""
    for child in ast.iter_child_nodes(node):
        if _is_foreign(child, named):
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr == "trigger":
            yield from ((child.lineno, trigger) for trigger in _asked_of(child))
        yield from _calls_in(child, named)


def _is_foreign(node: ast.AST, named: set[str]) -> bool:
    """Whether it is a function that nothing names, and that no decorator can have registered."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return node.name not in named and not node.decorator_list


def _asked_of(call: ast.Call) -> Iterator[str]:
    """The trigger without a barrier that a call asks for, whatever its variables hold."""
    is_only = len(call.keywords) == 1 and not call.args
    for keyword in call.keywords:
        value = keyword.value
        is_set = value.value is not None if isinstance(value, ast.Constant) else is_only
        if keyword.arg in _WITHOUT_BARRIER and is_set:
            yield keyword.arg
