"""One message of each kind as it is written: a change of the wire format is seen here first.

The files hold the examples of ``support.examples``. A message gains a field by a default, so that what was written
before is read; its file is then recorded again: ``PYTHONPATH=tests:. python tests/unit/protocol/test_golden.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from airflow_streamstate.protocol.codec import Message, from_bytes, to_bytes
from airflow_streamstate.protocol.scratch import ScratchRun
from airflow_streamstate.protocol.upgrades import Decision, UpgradeStep
from support.examples import DECISIONS, EXAMPLES, RUNS, example
from support.messages import KINDS

FOLDER = Path(__file__).parents[2] / "golden" / "messages"
STEP = example(UpgradeStep)
assert isinstance(STEP, UpgradeStep)
STEPS = [replace(STEP, decision=decision) for decision in DECISIONS]
ALL = (*EXAMPLES, *STEPS, *RUNS)


def golden_of(value: Message) -> Path:
    more = ""
    if isinstance(value, ScratchRun):
        more = f"-{type(value.what).__name__}"
    elif isinstance(value, UpgradeStep) and value is not STEP:
        more = f"-{type(value.decision).__name__}"
    return FOLDER / f"{value.kind}{more}.json"


@pytest.mark.parametrize("value", ALL, ids=lambda value: golden_of(value).stem)
def test_a_message_is_written_and_read_as_recorded(value: Message) -> None:
    """Byte for byte, and back (Law 7)."""
    body = golden_of(value).read_bytes()
    assert to_bytes(value) == body
    assert from_bytes(body, key=value.kind, expected=type(value)) == value


def test_every_kind_has_one_example_and_one_golden_file() -> None:
    """A kind that is registered and not recorded could change unseen; so could what a step of an upgrade decides."""
    assert sorted(value.kind for value in EXAMPLES) == sorted(KINDS)
    assert [type(decision) for decision in DECISIONS] == list(get_args(Decision))
    assert sorted(FOLDER.iterdir()) == sorted(map(golden_of, ALL))


if __name__ == "__main__":
    for value in ALL:
        golden_of(value).write_bytes(to_bytes(value))
