"""Every option, parameter and field that a user can set, on every surface, as one text.

One term that has other names, types or defaults on another surface is seen here, side by side.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import click

from airflow_streamstate import hooks, notifications, operators, sensors, streams_dag, triggers
from airflow_streamstate.cli.declared import schema
from airflow_streamstate.cli.options import Seconds
from support.shell import VERBS, parameters_of

_ROOMS = (operators, sensors, hooks, triggers, notifications)
_KINDS = ("Operator", "Sensor", "Hook", "Trigger", "Notifier")
_TEMPLATES = ("template_fields", "template_ext", "template_fields_renderers")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_ARGUMENT = re.compile(r"(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*): *(?P<help>.*)")
_PARAM = re.compile(r"^:param (?P<name>\w+): (?P<help>.*(?:\n +.*)*)", re.MULTILINE)
_SCHEMA_WORDS = ("title", "description")


def surfaces_text() -> str:
    """All of it."""
    parts = {
        "shell": [*shell_lines()],
        "Airflow": [*airflow_lines()],
        "file of a stream": [*file_lines()],
        "names, with the surfaces that have them": [*name_lines()],
    }
    return "\n".join(f"# {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts.items())


def shell_lines() -> Iterator[str]:
    """Each parameter of each verb."""
    for verb in VERBS:
        yield f"streamstate {verb}"
        for parameter in sorted(parameters_of(verb), key=lambda one: str(one.name)):
            if "--help" not in parameter.opts:
                yield from _shell_lines(parameter)


def _shell_lines(parameter: click.Parameter) -> Iterator[str]:
    if isinstance(parameter, click.Option):
        words = ", ".join([*parameter.opts, *parameter.secondary_opts])
        facts = [f"default {_shown(parameter.default)}"] if _is_given(parameter.default) else []
        help_text = parameter.help or ""
    else:
        words, facts, help_text = "argument", [], ""
    is_many = parameter.multiple if isinstance(parameter, click.Option) else parameter.nargs == -1
    kind = f"{_type_of(parameter)}{', repeatable' if is_many else ''}{', required' if parameter.required else ''}"
    yield f"  {parameter.name} [{words}]: {'; '.join([kind, *facts])}"
    if help_text:
        yield f"    {help_text}"


def _is_given(default: object) -> bool:
    """Whether it is a default; click marks a missing one with a value that differs from release to release."""
    return default not in (None, False, ()) and not repr(default).startswith("Sentinel.")


def _type_of(parameter: click.Parameter) -> str:
    kind = parameter.type
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return "flag"
    if isinstance(kind, click.Choice):
        return f"one of {', '.join(map(str, kind.choices))}"
    names = ("least", "most") if isinstance(kind, Seconds) else ("min", "max")
    bounds = [getattr(kind, name, None) for name in names]
    return f"{kind.name}{'' if bounds == [None, None] else ' {} to {}'.format(*bounds)}"


def airflow_lines() -> Iterator[str]:
    """Each parameter of each operator, sensor, hook, trigger and notifier; of hooks each method, too."""
    for made in airflow_classes():
        yield f"{made.__module__.removeprefix('airflow_streamstate.')}.{made.__name__}"
        yield from (f"  {name} = {_shown(getattr(made, name))}" for name in _TEMPLATES if hasattr(made, name))
        yield from _parameter_lines(made.__init__, made.__doc__)
        for name, method in _methods(made):
            yield f"  .{name}"
            yield from _parameter_lines(method, method.__doc__)
    yield "streams_dag"
    for name in streams_dag.__all__ if hasattr(streams_dag, "__all__") else _functions_of(streams_dag):
        yield f"  .{name}"
        yield from _parameter_lines(getattr(streams_dag, name), getattr(streams_dag, name).__doc__)


def airflow_classes() -> list[type]:
    """All of ours that a DAG names."""
    found: list[type] = []
    for room in _ROOMS:
        for info in pkgutil.iter_modules(room.__path__):
            module = importlib.import_module(f"{room.__name__}.{info.name}")
            found += [
                value
                for name, value in sorted(vars(module).items())
                if inspect.isclass(value) and value.__module__ == module.__name__
                if name.endswith(_KINDS) and not name.startswith("_")
            ]
    return found


def _methods(made: type) -> list[tuple[str, Any]]:
    if not made.__name__.endswith("Hook"):
        return []
    return [(name, value) for name, value in sorted(vars(made).items()) if inspect.isfunction(value) and name[0] != "_"]


def _functions_of(module: ModuleType) -> list[str]:
    own = vars(module).items()
    return sorted(
        name for name, value in own if inspect.isfunction(value) and value.__module__ == module.__name__
        if not name.startswith("_")
    )  # fmt: skip


def _parameter_lines(function: Any, doc: str | None) -> Iterator[str]:
    told = _arguments_in(doc or "")
    for parameter in inspect.signature(inspect.unwrap(function)).parameters.values():
        if parameter.name == "self":
            continue
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        default = "" if parameter.default is parameter.empty else f"; default {_shown(parameter.default)}"
        yield f"    {stars}{parameter.name}{kind}{default}"
        if parameter.name in told:
            yield f"      {told.pop(parameter.name)}"
    for name, help_text in told.items():
        yield f"    {name}, of a base"
        yield f"      {help_text}"


def _arguments_in(doc: str) -> dict[str, str]:
    """Name -> help, of ``:param name:`` and of the section ``Args:``."""
    clean = inspect.cleandoc(doc)
    found = {each["name"]: " ".join(each["help"].split()) for each in _PARAM.finditer(clean)}
    _, _, section = clean.partition("Args:\n")
    names: list[str] = []
    for line in section.splitlines():
        match = _ARGUMENT.fullmatch(line.strip()) if line.startswith("    ") and not line.startswith("     ") else None
        if line and not line.startswith(" "):
            break
        if match is not None:
            names = match["names"].replace("*", "").split(", ")
            found |= dict.fromkeys(names, match["help"])
        else:
            found |= {name: f"{found[name]} {line.strip()}".strip() for name in names}
    return found


def file_lines() -> Iterator[str]:
    """Each field of the file of a stream, as in its JSON schema."""
    found = schema()
    yield from _object_lines("", found)
    for name, part in sorted(found.get("$defs", {}).items()):
        yield from _object_lines(f"{name}.", part)


def _object_lines(prefix: str, part: Mapping[str, Any]) -> Iterator[str]:
    for name, field in part.get("properties", {}).items():
        kind = {word: value for word, value in field.items() if word not in _SCHEMA_WORDS}
        is_needed = name in part.get("required", ())
        yield f"  {prefix}{name}: {_shown(kind)}{'; required' if is_needed else ''}"
        if field.get("description"):
            yield f"    {field['description']}"


def name_lines() -> Iterator[str]:
    """Each name by which a surface calls something."""
    found: dict[str, list[str]] = defaultdict(list)
    for verb in VERBS:
        for parameter in parameters_of(verb):
            flag = parameter.opts[0] if isinstance(parameter, click.Option) else "argument"
            if "--help" in parameter.opts:
                continue
            found[str(parameter.name)].append(f"{verb} {flag}")
    for made in airflow_classes():
        for name in inspect.signature(inspect.unwrap(made.__init__)).parameters:
            if name not in ("self", "kwargs", "args"):
                found[name].append(made.__name__)
    described = schema()
    for prefix, part in (("file", described), *described.get("$defs", {}).items()):
        for name in part.get("properties", {}):
            found[name].append(prefix)
    for name in sorted(found):
        yield f"  {name}: {', '.join(found[name])}"


def _shown(value: object) -> str:
    """The same in each run: sets sorted, no address."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_shown(item)}" for name, item in sorted(value.items())) + "}"
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return _ADDRESS.sub("", repr(value))
