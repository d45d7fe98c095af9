"""The register of a stream."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.protocol.codec import from_json, to_json
from airflow_streamstate.protocol.register import StreamRegister
from support.examples import example


def test_a_register_before_the_first_deployment() -> None:
    """Token 0, no deployment, no attempt."""
    raw = {**to_json(example(StreamRegister)), "fencing_token": 0, "deployment_id": None, "attempt": 0, "intent": None}
    register = from_json(raw, key="k", expected=StreamRegister)
    assert (register.fencing_token, register.deployment_id, register.attempt, register.intent) == (0, None, 0, None)


@pytest.mark.parametrize("field", ["fencing_token", "deployment_id", "attempt", "attempt_mode", "write_id", "intent"])
def test_a_register_that_lacks_a_field_is_refused(field: str) -> None:
    """What is current is never guessed (Laws 5 and 7)."""
    raw = to_json(example(StreamRegister))
    del raw[field]
    with pytest.raises(MalformedMessageError, match=f"field {field} is missing"):
        from_json(raw, key="k", expected=StreamRegister)


def test_a_register_of_an_earlier_release_names_no_upgrade() -> None:
    """A stream that was never upgraded is held by nobody (Law 7)."""
    raw = to_json(example(StreamRegister))
    del raw["upgrade_id"]
    assert from_json(raw, key="k", expected=StreamRegister).upgrade_id is None
