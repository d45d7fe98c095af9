"""Which batches are held, and which connector knows a sink."""

from __future__ import annotations

from airflow_streamstate.connectors.files import FileSink
from airflow_streamstate.connectors.plain import NoopSink
from airflow_streamstate.connectors.sink import HeldBatches, Sink, connector_for, held_up_to


def test_only_a_sink_that_can_tell_lacks_a_batch() -> None:
    """Not knowing is no proof."""
    assert HeldBatches().lacks(3)
    assert not HeldBatches((3,)).lacks(3)
    assert HeldBatches((3,)).lacks(4)
    assert not HeldBatches(unknown_reason="it is asleep").lacks(3)


def test_every_id_up_to_the_newest_counts_as_held() -> None:
    """Also in a sink that never was given some of them: it skips them all the same."""
    assert list(held_up_to(5, 3).batch_ids) == [3, 4, 5]
    assert held_up_to(5, 6) == held_up_to(None, 0) or not held_up_to(5, 6).batch_ids


def test_the_first_connector_that_knows_a_sink_has_it() -> None:
    """None where none does."""
    connectors = (NoopSink(), FileSink())
    assert connector_for(Sink("parquet", "/out"), connectors) is connectors[1]
    assert connector_for(Sink("redis"), connectors) is None


def test_a_sink_is_called_by_what_people_know_of_it() -> None:
    """The table, else the path, else what it is."""
    assert Sink("delta", "/warehouse/t", "db.t").place == "db.t"
    assert Sink("json", "/out").place == "/out"
    assert Sink("foreachbatch").place == "foreachbatch"
