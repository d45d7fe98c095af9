"""The suite itself: a connector that breaks a promise does not pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.connectors.files import FileSink
from airflow_streamstate.connectors.plain import NoopSink
from airflow_streamstate.connectors.sink import FoundUndo, HeldBatches, Sink, SinkReach, UndoOrder
from airflow_streamstate.connectors.testing import SinkPlace, check_sink, check_undo, check_warming
from support.sink_reach import QUERY_ID, DictReach

OUT = Sink("json", "/data/out")
WRITTEN = {f"/data/out/_spark_metadata/{number}": "v1" for number in range(3)}


class _Forgetful(FileSink):
    """Does not report what it holds."""

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        return HeldBatches()


class _Greedy(FileSink):
    """Knows every sink."""

    def matches(self, sink: Sink) -> bool:
        return True


class _Eager(FileSink):
    """Writes more at each poll."""

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        return ("prepared, again",)


class _Boastful(NoopSink):
    """Reports that it skips what it knows, and shows nothing."""

    skips = "batch_id"


@pytest.mark.parametrize(
    ("connector", "said"),
    [
        (_Forgetful(), "does not hold 0 to 2"),
        (_Greedy(), "different kind"),
        (_Eager(), "first batch of all"),
        (object(), "lacks something"),
    ],
)
def test_a_broken_promise_is_named(connector: FileSink, said: str) -> None:
    """Each by its own sentence."""
    with pytest.raises(AssertionError, match=said):
        check_sink(connector, SinkPlace(OUT, DictReach()), SinkPlace(OUT, DictReach(dict(WRITTEN)), QUERY_ID, 2))


class _Half(FileSink):
    """Undoes all but the first of the batches."""

    def undo_batches(self, sink: Sink, request: UndoOrder, found: FoundUndo, reach: SinkReach) -> None:
        super().undo_batches(sink, replace(request, to_batch_id=request.to_batch_id + 1), _less(found), reach)


class _Silent(FileSink):
    """Names nothing."""

    def find_undo(self, sink: Sink, request: UndoOrder, reach: SinkReach) -> FoundUndo:
        return replace(super().find_undo(sink, request, reach), removed=())


def _less(found: FoundUndo) -> FoundUndo:
    return replace(found, batch_ids=found.batch_ids[1:])


@pytest.mark.parametrize(("connector", "said"), [(_Half(), "holds"), (_Silent(), "names nothing")])
def test_a_broken_promise_of_an_undo_is_named(connector: FileSink, said: str) -> None:
    """Each by its own sentence."""
    line = '{{"path": "file:///data/out/{}"}}'
    files = {name: f"v1\n{line.format(name[-1])}" for name in WRITTEN}
    with pytest.raises(AssertionError, match=said):
        check_undo(connector, SinkPlace(OUT, DictReach(files), QUERY_ID, 2), 0)


def test_a_sink_that_skips_has_to_be_shown() -> None:
    """A report about skipping is about a sink that was written to."""
    with pytest.raises(AssertionError, match="shows none"):
        check_sink(_Boastful(), SinkPlace(Sink("noop"), DictReach()))


class _Warm(NoopSink):
    """Writes alongside, and looks at its sink."""

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        reach.names_in(str(sink.path))
        reach.create_text(f"{scratch_uri}/row", str(row))


class _Trying(_Warm):
    """Tries its sink itself."""

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        reach.create_text(f"{sink.path}/row", str(row))


def test_an_connector_that_warms_leaves_no_trace_in_its_sink() -> None:
    """The old version still writes to it; what is tried is tried in a folder alongside."""
    reach = DictReach(dict(WRITTEN))

    def seen() -> list[str]:
        return [name for name in reach.files if name.startswith("/data/out/")]

    check_warming(_Warm(), SinkPlace(OUT, reach), "a row", "/scratch", seen)
    with pytest.raises(AssertionError, match="warming changed the sink"):
        check_warming(_Trying(), SinkPlace(OUT, reach), "a row", "/scratch", seen)
    with pytest.raises(AssertionError, match="lacks something"):
        check_warming(NoopSink(), SinkPlace(OUT, reach), "a row", "/scratch", seen)  # type: ignore[arg-type]
