"""Every error: its remedy, its words, and that it survives Airflow's pickling."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import json
import math
import pickle
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_streamstate import errors
from airflow_streamstate.errors import Remedy, StreamStateError

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, StreamStateError) and cls is not StreamStateError
]
PACKAGE = Path(errors.__file__).parent
REMEDIES = {
    "InvalidRequestError": Remedy.FIX,
    "UnavailableError": Remedy.RETRY,
    "ConflictError": Remedy.REREAD,
    "OutcomeUnknownError": Remedy.READ_BACK,
    "FencedError": Remedy.STOP,
    "DataError": Remedy.REPAIR,
    "DeadlineExceededError": Remedy.INSPECT,
    "ExpiredError": Remedy.REREAD,
    "DeploymentFailedError": Remedy.INSPECT,
    "DeploymentRefusedError": Remedy.FIX,
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_says_what_to_do_next(cls: type[StreamStateError]) -> None:
    """The remedy is that of its group, and its docstring is one sentence of what it means."""
    group = next(base.__name__ for base in cls.__mro__ if base.__name__ in REMEDIES)
    assert cls.remedy is REMEDIES[group]
    assert cls.__name__.endswith("Error")
    assert (cls.__doc__ or "").strip().endswith(".")


def test_every_remedy_has_a_class() -> None:
    """No group is empty."""
    assert {cls.remedy for cls in CLASSES} == set(Remedy)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("way", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])  # noqa: S301
def test_an_error_survives_pickling_with_its_context(cls: type[StreamStateError], way: object) -> None:
    """Airflow sends errors between processes."""
    error = cls(
        "the fact", next_step="Do this.", stream_id="orders", at=datetime(2026, 3, 1, tzinfo=timezone.utc), n=[1]
    )
    again = way(error)  # type: ignore[operator]
    assert type(again) is cls
    assert (again.message, again.next_step, again.context) == (error.message, error.next_step, error.context)
    assert str(again) == str(error)


def test_the_text_is_fact_then_facts_then_next_step() -> None:
    """One sentence, key=value, what to do; quotes where a value has spaces."""
    error = errors.ConflictError("the stream is running", stream_id="orders", by="ada l", next_step="Stop it first.")
    assert str(error) == 'the stream is running. stream_id=orders by="ada l". Stop it first.'
    assert str(errors.ConflictError("the stream is running")) == "the stream is running."


def test_times_are_shown_as_on_the_wire() -> None:
    """UTC with a Z, in the text and in JSON."""
    at = datetime(2026, 3, 1, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    error = errors.DeadlineExceededError("it took too long", deadline_at=at)
    assert "deadline_at=2026-03-01T10:00:00.000Z" in str(error)
    assert error.to_json()["context"] == {"deadline_at": "2026-03-01T10:00:00.000Z"}


def test_json_holds_type_message_context_and_next_step() -> None:
    """The object that every ``--json`` surface and trigger event carries, always plain JSON."""
    error = errors.DataError(
        "a file is altered", next_step="Verify it.", path=Path("/x"), sizes=(1, 2.5), more={1: None, "b": {True}},
        rate=math.nan, remedy=Remedy.FIX,
    )  # fmt: skip
    raw = error.to_json()
    assert json.loads(json.dumps(raw, allow_nan=False)) == {
        "type": "DataError",
        "message": "a file is altered",
        "context": {
            "path": "/x", "sizes": [1, 2.5], "more": {"1": None, "b": "{True}"}, "rate": None, "remedy": "Remedy.FIX"
        },
        "next_step": "Verify it.",
    }  # fmt: skip


@functools.cache
def messages() -> list[tuple[str, str, str]]:
    """(where, message, next step) of every error that the package raises with a plain sentence."""
    names = {cls.__name__ for cls in CLASSES}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in names:
                continue
            steps = [word.value for word in node.keywords if word.arg == "next_step"]
            found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", text_of(node.args[:1]), text_of(steps)))
    return [entry for entry in found if entry[1]]


def text_of(nodes: list[ast.expr]) -> str:
    """The text of a literal, or of an f-string with its values as ``x``."""
    node = nodes[0] if nodes else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return ""


def test_messages_are_found() -> None:
    """The check below looks at something."""
    assert len(messages()) > 50


def test_messages_are_lower_case_sentences_without_a_full_stop() -> None:
    """One sentence of fact; never "failed to"; names keep their capitals."""
    bad = [
        (where, message)
        for where, message, _ in messages()
        if (re.match(r"[A-Z][a-z]+ ", message) and not re.match(r"(Spark|Airflow|Java|Hadoop|Python|Kafka) ", message))
        or message.endswith((".", "!"))
        or "failed to" in message.lower()
    ]
    assert bad == []


def test_next_steps_are_whole_sentences() -> None:
    """They start with a capital or a command in backquotes, and end with a full stop."""
    bad = [(where, step) for where, _, step in messages() if step and not re.match(r"[A-Z`x].*[.)]$", step, re.DOTALL)]
    assert bad == []


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_comes_back_from_json(cls: type[StreamStateError]) -> None:
    """As another process wrote it down; a class that is not known here is damage, and never a class of Python's."""
    error = cls("no such thing", next_step="Look.", stream_id="orders", count=3)
    found = errors.read_error(json.loads(json.dumps(error.to_json())))
    assert (type(found), str(found)) == (cls, str(error))
    for other in ("SystemExit", "json", "read_error", "NewerError"):
        assert type(errors.read_error({**error.to_json(), "type": other})) is errors.DataError
