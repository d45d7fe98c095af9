"""Whose a stream is: what can be recorded, and what a label is asked for by."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.codec import from_json, to_json
from airflow_streamstate.protocol.policies import MAX_CHARACTERS, MAX_LABELS, Ownership
from airflow_streamstate.protocol.records import StreamRegister
from support.examples import example


def test_what_is_not_given_stays() -> None:
    """An owner or all labels; each of them can be taken away."""
    first = Ownership().changed("payments", {"tier": "canary", "eu": ""})
    assert first.changed("ops") == Ownership("ops", {"eu": "", "tier": "canary"})
    assert first.changed(labels={}) == Ownership("payments")
    assert first.changed("") == Ownership("", first.labels)


@pytest.mark.parametrize(
    ("label", "has_it"),
    [("tier", True), ("tier=canary", True), ("tier=", False), ("eu=", True), ("team", False), ("team=", False)],
)
def test_a_label_is_asked_for_by_name_or_with_its_value(label: str, has_it: bool) -> None:
    """``NAME`` is any value, ``NAME=`` the empty one."""
    assert Ownership(labels={"tier": "canary", "eu": ""}).has(label) is has_it


@pytest.mark.parametrize(
    ("owner", "labels", "fact"),
    [
        ("x" * (MAX_CHARACTERS + 1), None, "owner"),
        ("two\nlines", None, "owner"),
        (None, {"a b": "1"}, "a b"),
        (None, {"": "1"}, "next_step"),
        (None, {"-a": "1"}, "-a"),
        (None, {"a" * 64: "1"}, "letters"),
        (None, {"a": "\x1b[31m"}, "labels.a"),
        (None, {f"a{number}": "" for number in range(MAX_LABELS + 1)}, "33"),
    ],
)
def test_what_cannot_be_recorded_is_refused(owner: str | None, labels: dict[str, str] | None, fact: str) -> None:
    """In one sentence that reports what can be recorded."""
    with pytest.raises(InvalidRequestError) as refused:
        Ownership().changed(owner, labels)
    assert fact in str(refused.value.to_json())
    assert refused.value.next_step


def test_a_register_of_an_earlier_checkout_has_none() -> None:
    """It is read as one without an owner (Law 7)."""
    raw = to_json(example(StreamRegister))
    del raw["ownership"]
    assert from_json(raw, key="k", expected=StreamRegister).ownership == Ownership()
