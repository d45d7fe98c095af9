"""One message of each kind as it is written: a change of the wire format is seen here first.

The files hold the examples of ``support.examples``. A message gains a field by a default, so that what was written
before is read; its file is then recorded again: ``PYTHONPATH=tests:. python tests/unit/protocol/test_golden.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.protocol.codec import Message, from_bytes, to_bytes
from support.examples import EXAMPLES
from support.messages import KINDS

FOLDER = Path(__file__).parents[2] / "golden" / "messages"


def golden_of(value: Message) -> Path:
    return FOLDER / f"{value.kind}.json"


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda value: value.kind)
def test_a_message_is_written_and_read_as_recorded(value: Message) -> None:
    """Byte for byte, and back (Law 7)."""
    body = golden_of(value).read_bytes()
    assert to_bytes(value) == body
    assert from_bytes(body, key=value.kind, expected=type(value)) == value


def test_every_kind_has_one_example_and_one_golden_file() -> None:
    """A kind that is registered and not recorded could change unseen."""
    assert sorted(value.kind for value in EXAMPLES) == sorted(KINDS)
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(KINDS)


if __name__ == "__main__":
    for value in EXAMPLES:
        golden_of(value).write_bytes(to_bytes(value))
