"""Forms of views: which keys their JSON has, and in which order."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from datetime import datetime, timezone
from typing import ClassVar

import pytest

import airflow_streamstate
from airflow_streamstate.protocol.forms import View, paths_of, selected

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
ROOMS = ("protocol", "control", "snapshot", "plan", "controller", "declarations", "alerts")
"""The rooms that have views."""


@dataclass(frozen=True)
class _Part:
    at: datetime
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Whole(View):
    form: ClassVar[str] = "name=stream_id * -secret doubled first=parts.a.at note? **more"

    stream_id: str
    parts: dict[str, _Part] = field(default_factory=dict)
    secret: str = "hidden"
    count: float = 1.0
    note: str = ""
    more: _Part | None = None

    @property
    def doubled(self) -> float:
        """Twice the count."""
        return 2 * self.count


def test_a_form_gives_the_keys_and_their_order() -> None:
    """Fields, properties, other names, paths, and nested dataclasses with their times."""
    found = _Whole("flights", {"a": _Part(AT, ("x", "y"))}).to_json()
    assert json.dumps(found) == (
        '{"name": "flights", "stream_id": "flights", "parts": {"a": {"at": "2026-01-02T03:04:05.000Z", "words": ["x",'
        ' "y"]}}, "count": 1.0, "more": null, "doubled": 2.0, "first": "2026-01-02T03:04:05.000Z"}'
    )


def test_a_value_that_is_not_set_is_left_out_or_null() -> None:
    """``?`` leaves a key out; a path through null is null; merged keys come in place."""
    assert selected(_Whole("s"), "note? note_too=note missing=more.at") == {"note_too": "", "missing": None}
    assert selected(_Whole("s", note="n", more=_Part(AT)), "note? **more count") == {
        "note": "n",
        "at": "2026-01-02T03:04:05.000Z",
        "words": [],
        "count": 1.0,
    }


def test_a_path_has_others_for_where_it_gives_nothing() -> None:
    """The next one, or null where the form names it; a value that is false or 0 is one."""
    form = "note|stream_id name=more.at|note|stream_id note_or_null=note|null count|null"
    assert selected(_Whole("s", count=0.0), form) == {"note": "s", "name": "s", "note_or_null": None, "count": 0.0}
    assert selected(_Whole("s", note="n"), "note|null last=secret|note empty=more|note") == {
        "note": "n",
        "last": "hidden",
        "empty": "n",
    }
    assert selected(_Whole("s"), "last=more|note") == {"last": ""}
    assert paths_of(_Whole, "note|null name=more.at|stream_id") == ["note", "more.at", "stream_id"]


def test_a_later_word_replaces_the_value_of_a_key_in_its_place() -> None:
    """So a view can show a field as text, and all others as they are."""
    assert list(selected(_Whole("s"), "* count=doubled -more").items())[3] == ("count", 2.0)


def _views() -> Iterator[type[View]]:
    prefix = f"{airflow_streamstate.__name__}."
    for room in ROOMS:
        package = importlib.import_module(f"{prefix}{room}")
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(info.name)
    waiting = [View]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.startswith(prefix) and is_dataclass(cls):
            yield cls


@pytest.mark.parametrize("cls", sorted(_views(), key=lambda cls: cls.__qualname__), ids=lambda cls: cls.__name__)
def test_every_word_of_a_form_names_a_field_or_a_property(cls: type[View]) -> None:
    """A form is text that no type checker reads: a misspelt word is found here."""
    names = {name for each in cls.__mro__ for name in (*vars(each), *getattr(each, "__annotations__", {}))}
    assert {path.partition(".")[0] for path in paths_of(cls, cls.form)} <= names
