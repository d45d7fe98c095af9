"""One message of each kind as it is written: a change of the wire format is seen here first.

The files hold the examples of ``support.examples``. A message gains a field by a default, so that what was written
before is read; ``python tests/net/record.py messages`` then records its file again.
"""

from __future__ import annotations

from typing import get_args

import pytest

from airflow_streamstate.protocol.codec import Message, from_bytes, to_bytes
from airflow_streamstate.protocol.upgrades import Decision
from support.examples import DECISIONS, EXAMPLES, GOLDEN_MESSAGES, RECORDED, golden_of
from support.messages import KINDS


@pytest.mark.parametrize("value", RECORDED, ids=lambda value: golden_of(value).stem)
def test_a_message_is_written_and_read_as_recorded(value: Message) -> None:
    """Byte for byte, and back (Law 7)."""
    body = golden_of(value).read_bytes()
    assert to_bytes(value) == body
    assert from_bytes(body, key=value.kind, expected=type(value)) == value


def test_every_kind_has_one_example_and_one_golden_file() -> None:
    """A kind that is registered and not recorded could change unseen; so could what a step of an upgrade decides."""
    assert sorted(value.kind for value in EXAMPLES) == sorted(KINDS)
    assert [type(decision) for decision in DECISIONS] == list(get_args(Decision))
    assert sorted(GOLDEN_MESSAGES.iterdir()) == sorted(map(golden_of, RECORDED))
