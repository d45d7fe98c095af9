"""What else is wrong with declared streams, found without a home: by the checks that a deploy would make.

The checks tell what is wrong, and not always in which field of a file. That is found by leaving fields out, one after
the other: the one without which the refusal is gone, or is another one, is what it was about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_streamstate.declarations.model import StreamDeclaration
from airflow_streamstate.declarations.reading import DeclaredStream, Lines, Problem, ReadFiles, values_of
from airflow_streamstate.declarations.term_parts import reason_of
from airflow_streamstate.declarations.versions import check_script, deploy_request, upgrade_request
from airflow_streamstate.errors import StreamStateError

_ANY_HOME = "file:///"
_MOST_PROBLEMS = 20
_LEFT_OUT = None
"""No list of a stream has such a value."""
_Place = tuple[str, ...]


def checked(read: ReadFiles) -> ReadFiles:
    """The same, without the streams that a deploy would refuse, and with what it would refuse them for."""
    streams, problems = [], list(read.problems)
    for one in read.streams:
        found = _problems_of(one)
        problems += found
        if not found:
            streams.append(one)
    return ReadFiles(tuple(streams), tuple(problems))


def _problems_of(declared: DeclaredStream) -> list[Problem]:
    refusal = _refusal(declared)
    if refusal is None:
        return []
    values, lines = values_of(declared.path)
    found: list[Problem] = []
    while refusal is not None and len(found) < _MOST_PROBLEMS:
        place, after = _place_of(declared, values, refusal)
        found.append(_problem(declared.path, place, lines, refusal))
        if after is None:
            break
        values = after
        refusal = _refusal_of(declared, values)
    return found


def _place_of(
    declared: DeclaredStream, values: dict[str, Any], refusal: StreamStateError
) -> tuple[_Place, dict[str, Any] | None]:
    """The field that the refusal is about, and the values without it; None where it cannot be left out."""
    for place in _places(values, ()):
        less = _without(values, place)
        try:
            another = _refusal_of(declared, less)
        except ValidationError:
            continue  # it is needed
        if another is None or another.to_json() != refusal.to_json():
            return place, less
    return ("application",), None


def _places(values: Any, at: _Place) -> Iterator[_Place]:
    """Each value, what is within it first."""
    inside = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for name, value in inside:
        yield from _places(value, (*at, str(name)))
        yield (*at, str(name))


def _without(values: dict[str, Any], place: _Place) -> dict[str, Any]:
    found: dict[str, Any] = deepcopy(values)
    within: Any = found
    for name in place[:-1]:
        within = within[int(name) if isinstance(within, list) else name]
    if isinstance(within, list):
        within[int(place[-1])] = _LEFT_OUT  # the others keep their places
    else:
        del within[place[-1]]
    return found


def _refusal_of(declared: DeclaredStream, values: Mapping[str, Any]) -> StreamStateError | None:
    """Raises ValidationError."""
    return _refusal(replace(declared, declaration=StreamDeclaration.model_validate(_left(values))))


def _left(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _left(value) for name, value in values.items()}
    return [_left(one) for one in values if one is not _LEFT_OUT] if isinstance(values, list) else values


def _refusal(declared: DeclaredStream) -> StreamStateError | None:
    """What a deploy, or an upgrade to it, would be refused for; None for nothing."""
    try:
        request = deploy_request(declared, _ANY_HOME)
        upgrade_request(declared, _ANY_HOME, request.version)
        check_script(declared)
    except StreamStateError as error:
        return error
    return None


def _problem(path: Path, place: _Place, lines: Lines, refusal: StreamStateError) -> Problem:
    return Problem(path, lines.of(place), ".".join(place), reason_of(refusal))
