"""Rows that two versions write differently, as tables."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.replay_report import SampleTable, changed_rows, sample_tables
from airflow_streamstate.protocol.scratch import ReplayedBatch, RowComparison

CHANGED = '{"key":{"route":"JFK-LAX","hour":7},"old":{"delay":-95},"new":{"delay":null}}'


def test_a_changed_row_has_its_key_its_old_and_its_new_values() -> None:
    """As text; the columns of a row of one version alone are those of the table."""
    comparison = RowComparison(
        4, 1, 1, changed=1, keys=("route", "hour"), samples_changed=(CHANGED,),
        samples_old=('{"route":"SFO-BOS","tags":["a"]}', '{"route":"SFO-BOS","late":true}'),
    )  # fmt: skip
    assert sample_tables("delays", ReplayedBatch(3, 10, 2, 0.5, comparison=comparison)) == {
        "batch 3 of delays, changed": SampleTable(
            ("key", "old", "new"), (("route JFK-LAX, hour 7", "delay -95", "delay null"),)
        ),
        "batch 3 of delays, only old": SampleTable(
            ("route", "tags", "late"), (("SFO-BOS", '["a"]', "null"), ("SFO-BOS", "null", "true"))
        ),
    }
    assert sample_tables("delays", None) == sample_tables("delays", ReplayedBatch(3, 10, 2, 0.5)) == {}


@pytest.mark.parametrize("cut", ['{"key":{"route":"JF', '["a"]', '"text"', "…"])
def test_a_row_that_was_cut_is_shown_as_it_is(cut: str) -> None:
    """A secret may have been hidden in it, or it was too long."""
    assert changed_rows([cut, CHANGED]) == (
        (cut, "", ""),
        ("route JFK-LAX, hour 7", "delay -95", "delay null"),
    )
    comparison = RowComparison(4, 1, 0, samples_old=('{"a":1}', cut))
    (table,) = sample_tables("delays", ReplayedBatch(3, 10, 2, 0.5, comparison=comparison)).values()
    assert table == SampleTable(("row",), (('{"a":1}',), (cut,)))
