"""The JSON of what verbs answer, by forms."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.codec import Tagged, plain_value


class View:
    """Base of the dataclasses that are shown as JSON: by ``form``, by default all fields."""

    form: ClassVar[str] = "*"

    def to_json(self) -> dict[str, Any]:
        """The JSON, as ``form`` selects it."""
        return selected(self, self.form)


def selected(value: object, form: str) -> dict[str, Any]:
    """What a form selects of a value, as plain JSON.

    ``path|other``: the other path where the first gives "" or null; ``path|null``: null where it gives "".
    """
    found: dict[str, Any] = {}
    cls: Any = type(value)
    for word in _words(cls, form):
        one = json_of(word.read(value))
        if word.is_merged:
            found |= one or {}
        elif not (word.is_optional and one in (None, "", {})):
            found[word.key] = one
    return found


def json_of(value: object) -> Any:
    """Any value as plain JSON: views by their forms, other dataclasses by their fields, times as RFC 3339."""
    if isinstance(value, (View, StreamStateError)):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): json_of(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [json_of(item) for item in value]
    if isinstance(value, Tagged):
        return {"kind": type(value).__name__, **selected(value, "*")}
    if dataclasses.is_dataclass(value):
        return selected(value, "*")
    return plain_value(value)


def paths_of(cls: type, form: str) -> list[str]:
    """What the words of a form read of a value of this class."""
    return [path for word in _words(cls, form) for path in word.paths if path != _NULL]


_NULL = "null"


@dataclasses.dataclass(frozen=True)
class _Word:
    key: str
    paths: tuple[str, ...]
    is_optional: bool = False
    is_merged: bool = False

    def read(self, value: object) -> Any:
        found = None
        for path in self.paths:
            found = None if path == _NULL else _at(path, value)
            if found not in (None, ""):
                break
        return found


def _at(path: str, value: Any) -> Any:
    for name in path.split("."):
        if value is not None:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


@functools.cache
def _words(cls: type, form: str) -> tuple[_Word, ...]:
    words: dict[str, _Word] = {}
    for text in form.split():
        if text == "*":
            words |= {name: _Word(name, (name,)) for name in _field_names(cls)}
        elif text.startswith("-"):
            del words[text[1:]]
        elif text.startswith("**"):
            words[text] = _Word(text, (text[2:],), is_merged=True)
        else:
            key, _, path = text.partition("=")
            name = key.partition("|")[0].rstrip("?")
            paths = tuple((path or key.rstrip("?")).split("|"))
            words[name] = _Word(name, paths, is_optional=key.endswith("?"))
    return tuple(words.values())


def _field_names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(typing.cast("Any", cls))]
