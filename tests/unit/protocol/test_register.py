"""The register of a stream."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.protocol.codec import from_json, to_json
from airflow_streamstate.protocol.records import StreamRegister
from support.examples import example


@pytest.mark.parametrize("field", ["fencing_token", "deployment_id", "attempt", "attempt_mode", "write_id", "intent"])
def test_a_register_that_lacks_a_field_is_refused(field: str) -> None:
    """What is current is never guessed (Laws 5 and 7)."""
    raw = to_json(example(StreamRegister))
    del raw[field]
    with pytest.raises(MalformedMessageError, match=f"field {field} is missing"):
        from_json(raw, key="k", expected=StreamRegister)


def test_a_register_of_an_earlier_release_names_no_upgrade() -> None:
    """No upgrade holds a stream that was never upgraded (Law 7)."""
    raw = to_json(example(StreamRegister))
    del raw["upgrade_id"]
    assert from_json(raw, key="k", expected=StreamRegister).upgrade_id is None
