"""The retention of a stream: what can be recorded, and its text."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_streamstate.errors import InvalidRequestError, MalformedMessageError
from airflow_streamstate.protocol.codec import from_json, to_json
from airflow_streamstate.protocol.policies import KEPT_SNAPSHOTS, MAX_AGE_SECONDS, RetentionPolicy, RetentionRegister
from airflow_streamstate.protocol.records import StreamRegister
from support.examples import EXAMPLES


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({}, None),
        ({"keep": 0}, RetentionPolicy(0)),
        ({"older_than_seconds": 0}, RetentionPolicy(None, 0.0)),
        ({"keep": 5, "older_than_seconds": 3600.0, "at_mirrors": True}, RetentionPolicy(5, 3600.0, at_mirrors=True)),
        ({"keep": None, "older_than_seconds": MAX_AGE_SECONDS}, RetentionPolicy(None, MAX_AGE_SECONDS)),
    ],
)
def test_values_are_a_policy(given: dict[str, Any], policy: RetentionPolicy | None) -> None:
    """No values are no policy."""
    assert RetentionPolicy.of(given) == policy


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"keep": -1}, "keep"),
        ({"keep": True}, "keep"),
        ({"keep": 2**63}, "Use 9,223,372,036,854,775,807 at most"),  # no record could be read again
        ({"keep": 1.5}, "keep"),
        ({"keep": "few"}, "keep"),
        ({"older_than_seconds": -0.5}, "older_than_seconds"),
        ({"older_than_seconds": MAX_AGE_SECONDS + 1}, "older_than_seconds"),
        ({"older_than_seconds": float("nan")}, "older_than_seconds"),
        ({"older_than_seconds": "old"}, "older_than_seconds"),
        ({"keep": 1, "at_mirrors": "yes"}, "at_mirrors"),
        ({"at_mirrors": True}, "does not say which snapshots stay"),
        ({"keep": None, "older_than_seconds": None, "at_mirrors": False}, "Give keep, older_than_seconds or both"),
        ({"kep": 3}, "Did you mean keep?"),
    ],
)
def test_what_cannot_be_a_policy_is_refused(given: dict[str, Any], fact: str) -> None:
    """With what is wrong, and what to give."""
    with pytest.raises(InvalidRequestError) as refused:
        RetentionPolicy.of(given)
    assert fact in str(refused.value)


def test_how_many_of_the_newest_stay() -> None:
    """Without a word, the usual number; with an age alone, none at any age."""
    assert RetentionPolicy().kept_count == KEPT_SNAPSHOTS
    assert RetentionPolicy(older_than_seconds=60.0).kept_count == 0
    assert RetentionPolicy(3, 60.0).kept_count == 3


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (RetentionPolicy(5), "keeps the newest 5"),
        (RetentionPolicy(0), "keeps nothing but what is needed"),
        (
            RetentionPolicy(5, 604_800.0, at_mirrors=True),
            "keeps the newest 5 and what was used in the last 604,800 s; at its mirrors, too",
        ),
    ],
)
def test_a_policy_in_words(policy: RetentionPolicy, words: str) -> None:
    """As people read it."""
    assert policy.words == words


@pytest.mark.parametrize(
    ("kind", "field"), [(StreamRegister, "retention"), (RetentionRegister, "last_prune")], ids=lambda one: str(one)
)
def test_a_register_of_an_earlier_release_has_no_policy(kind: type[Any], field: str) -> None:
    """It is read on, and nothing is pruned by it. (Law 7)"""
    (example,) = [one for one in EXAMPLES if isinstance(one, kind)]
    raw = to_json(example)
    assert raw.pop(field) is not None
    assert getattr(from_json(raw, key="k", expected=kind), field) is None


@pytest.mark.parametrize("value", [{"keep": -3}, {"keep": "all"}, {"older_than_seconds": -1}, [5]])
def test_a_damaged_policy_is_no_policy_that_removes_more(value: object) -> None:
    """A register that contains it is refused as a whole. (Law 7)"""
    (example,) = [one for one in EXAMPLES if isinstance(one, StreamRegister)]
    with pytest.raises(MalformedMessageError):
        from_json({**to_json(example), "retention": value}, key="k", expected=StreamRegister)
