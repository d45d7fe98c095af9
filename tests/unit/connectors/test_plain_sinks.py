"""Sinks that know no batches report that."""

from __future__ import annotations

import pytest

from airflow_streamstate.connectors.plain import ConsoleSink, ForeachBatchSink, KafkaSink, MemorySink, NoopSink
from airflow_streamstate.connectors.sink import Sink, SinkConnector
from airflow_streamstate.connectors.testing import SinkPlace, check_sink
from support.sink_reach import DictReach


@pytest.mark.parametrize("kind", [KafkaSink, ForeachBatchSink, MemorySink, ConsoleSink])
def test_a_sink_that_cannot_tell_proves_nothing(kind: type[SinkConnector]) -> None:
    """Neither that a batch is there nor that it is not; and it reports why."""
    connector = kind()
    sink = Sink(connector.name.lower())
    held = connector.held_batches(sink, "a query", 0, DictReach())
    assert connector.matches(sink)
    assert held.unknown_reason
    assert not held.lacks(0)
    assert list(held.batch_ids) == []


@pytest.mark.parametrize("kind", [KafkaSink, ForeachBatchSink, MemorySink, ConsoleSink, NoopSink])
def test_each_keeps_what_an_connector_promises(kind: type[SinkConnector]) -> None:
    """The suite for any connector."""
    check_sink(kind(), SinkPlace(Sink(kind.name.lower()), DictReach()))
