"""The truth table of state that is rewritten, each row tried: it is the state of a run that started with the new
version, and the query continues as that one.

``STREAMSTATE_TRUTH=full`` tries every row, ``STREAMSTATE_RECORD=1`` records what was seen for
``docs/reference/rewritten-state.md``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.errors import StreamStateError
from support.rewrite_lab import RewriteLab, StateRows, rewriting_in
from support.rewrite_record import Recorder
from support.rewrite_table import ROWS, Row
from support.truth_table import PROVIDER, ROCKSDB

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
IN_FULL = os.environ.get("STREAMSTATE_TRUTH") == "full"
TRIED = tuple(row for row in ROWS if IN_FULL or row.in_ci)


@pytest.fixture(scope="module")
def lab(shared_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewriteLab]:
    """One warm session for all rows."""
    with rewriting_in(shared_spark, tmp_path_factory.mktemp("rewrites")) as found:
        yield found


@pytest.fixture(scope="module")
def recorder(lab: RewriteLab) -> Iterator[Recorder]:
    """Holds what is seen against what was recorded, or records it."""
    found = Recorder(lab.spark.version, writes=os.environ.get("STREAMSTATE_RECORD") == "1")
    yield found
    found.write()


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
@pytest.mark.parametrize("row", TRIED, ids=lambda row: row.name)
def test_state_that_is_written_anew_is_that_of_the_new_version(lab: RewriteLab, recorder: Recorder, row: Row) -> None:
    """Row for row, byte for byte, in the same partitions; and so is all that the query writes from there on."""
    if row.refused:
        with pytest.raises(StreamStateError, match=row.refused) as refused:
            lab.rewritten(row)
        assert refused.value.next_step
        assert "\n" not in str(refused.value)
        recorder.saw(row, f"{refused.value.message}. {refused.value.next_step}")
        return
    checkpoint = lab.rewritten(row)
    if row.has_clock:
        check_with_clock(lab, row, checkpoint)
    else:
        assert lab.state_of(checkpoint) == lab.state_of(lab.begun(row.new))
        assert told(lab.run(row.new, checkpoint, "all")) == lab.going_on(row.new)
    recorder.saw(row)


def check_with_clock(lab: RewriteLab, row: Row, checkpoint: Checkpoint) -> None:
    """What depends on the clock has no equal in another run: it stays as it was, and comes to its end as there."""
    other = lab.fork(row.new)
    if row.old.settings[PROVIDER] == ROCKSDB and not row.migration:
        assert by_bytes(lab.state_of(checkpoint)) == by_bytes(lab.state_of(lab.begun(row.old)))
    assert by_place(lab.state_of(checkpoint)) == by_place(lab.state_of(other))
    assert lab.run_hours_ahead(row.new, checkpoint) == lab.run_hours_ahead(row.new, other)
    assert by_place(lab.state_of(checkpoint)) == by_place(lab.state_of(other))
    # Without input Spark starts one batch after the other for such timeouts, and never comes to an end.
    first, second = (lab.run(row.new, each, "all", empty_batches=False) for each in (checkpoint, other))
    assert told(first) == told(second)


def told(written: Mapping[int, list[str]]) -> list[str]:
    return sorted(row for rows in written.values() for row in rows)


def by_bytes(rows: StateRows) -> StateRows:
    return sorted(((*row[:2], *row[3:]) for row in rows), key=repr)


def by_place(rows: StateRows) -> StateRows:
    return sorted(((row[0], row[1], row[2], row[5]) for row in rows), key=repr)
