"""The suite itself: an adapter that breaks a promise does not pass."""

from __future__ import annotations

import pytest

from airflow_streamstate.adapters.file_sink import FileSink
from airflow_streamstate.adapters.plain_sinks import NoopSink
from airflow_streamstate.adapters.sink import HeldBatches, Sink, SinkReach
from airflow_streamstate.adapters.sink_conformance import SinkPlace, check_sink
from support.sink_reach import QUERY_ID, DictReach

OUT = Sink("json", "/data/out")
WRITTEN = {f"/data/out/_spark_metadata/{number}": "v1" for number in range(3)}


class _Forgetful(FileSink):
    """Does not say what it holds."""

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        return HeldBatches()


class _Greedy(FileSink):
    """Knows every sink."""

    def matches(self, sink: Sink) -> bool:
        return True


class _Eager(FileSink):
    """Writes more at each look."""

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        return ("prepared, again",)


class _Boastful(NoopSink):
    """Says that it skips what it knows, and shows nothing."""

    skips = "batch_id"


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        (_Forgetful(), "does not hold 0 to 2"),
        (_Greedy(), "another's sink"),
        (_Eager(), "first batch of all"),
        (object(), "lacks something"),
    ],
)
def test_a_broken_promise_is_named(adapter: FileSink, said: str) -> None:
    """Each by a sentence of its own."""
    with pytest.raises(AssertionError, match=said):
        check_sink(adapter, SinkPlace(OUT, DictReach()), SinkPlace(OUT, DictReach(dict(WRITTEN)), QUERY_ID, 2))


def test_a_sink_that_skips_has_to_be_shown() -> None:
    """What is said of skipping is said of a sink that was written to."""
    with pytest.raises(AssertionError, match="shows none"):
        check_sink(_Boastful(), SinkPlace(Sink("noop"), DictReach()))
