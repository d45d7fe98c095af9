"""What any sink adapter has to keep to: call this from a test of your own; it needs no test framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_streamstate.connectors.sink import HeldBatches, Sink, SinkAdapter, SinkReach
from airflow_streamstate.connectors.undoing import UndoingSink, UndoWish
from airflow_streamstate.connectors.warming import WarmingSink

OTHER_QUERY_ID = "77777777-5b1c-4d4f-9f0f-0a4d2f3c1b11"
FAR_ID = 14
"""A batch id that goes on from elsewhere, past one merge of a file sink's log."""


@dataclass(frozen=True)
class SinkPlace:
    """A sink of which the caller knows what it holds.

    Attributes:
        sink: it.
        reach: what to ask with.
        query_id: of the query that wrote to it; "" where nobody did.
        newest: its newest batch there, where that query wrote every batch up to it; None where nobody wrote.
    """

    sink: Sink
    reach: SinkReach
    query_id: str = ""
    newest: int | None = None


def check_sink(adapter: SinkAdapter, empty: SinkPlace, written: SinkPlace | None = None) -> None:
    """Hold an adapter against what ``SinkAdapter`` promises.

    Args:
        adapter: the adapter.
        empty: a sink of its kind that nobody wrote to; it is prepared, and of no other use then.
        written: one that somebody wrote to; None where the adapter's sinks keep no batches.

    Raises:
        AssertionError: it does not keep a promise; says which.
    """
    _need(isinstance(adapter, SinkAdapter), "it lacks something of the interface")
    _need(bool(adapter.name), "it has no name")
    _need(bool(adapter.undo), "it does not say how its sink is undone")
    _need(adapter.skips in ("batch_id", "query_id_and_batch_id", "nothing", "unknown"), "it does not say what it skips")
    _need(adapter.matches(empty.sink), "it does not know a sink of its own kind")
    _need(not adapter.matches(Sink("conformance-no-such-format", "/out")), "it takes another's sink for its own")
    _check_empty(adapter, empty)
    if written is not None:
        _check_written(adapter, written)
    else:
        _need(adapter.skips in ("nothing", "unknown"), "it says that its sink skips batches, and shows none that does")


def _check_empty(adapter: SinkAdapter, place: SinkPlace) -> None:
    for query_id in (None, OTHER_QUERY_ID):
        held = adapter.held_batches(place.sink, query_id, 0, place.reach)
        _need(not list(held.batch_ids), f"a sink that nobody wrote to holds {list(held.batch_ids)}")
    _need(adapter.prepare(place.sink, 0, place.reach) == (), "it prepares a sink for the first batch of all")
    adapter.prepare(place.sink, FAR_ID, place.reach)
    _need(adapter.prepare(place.sink, FAR_ID, place.reach) == (), "what is prepared is prepared again")
    held = adapter.held_batches(place.sink, OTHER_QUERY_ID, FAR_ID, place.reach)
    _need(not list(held.batch_ids), "the batch that it was prepared for counts as held")


def _check_written(adapter: SinkAdapter, place: SinkPlace) -> None:
    newest = place.newest
    if newest is None:
        raise AssertionError("the sink that somebody wrote to must have a newest batch")

    def held(query_id: str | None, from_batch_id: int) -> HeldBatches:
        return adapter.held_batches(place.sink, query_id, from_batch_id, place.reach)

    found = held(place.query_id, 0)
    _need(not found.unknown_reason, f"it cannot tell: {found.unknown_reason}")
    _need(list(found.batch_ids) == list(range(newest + 1)), f"it does not hold 0 to {newest}: {list(found.batch_ids)}")
    _need(list(held(place.query_id, newest).batch_ids) == [newest], "it names ids below the one that was asked for")
    _need(held(place.query_id, newest + 1).lacks(newest + 1), "it does not know that the next batch is missing")
    for query_id in (OTHER_QUERY_ID, None):
        others = list(held(query_id, 0).batch_ids)
        expected = list(range(newest + 1)) if adapter.skips == "batch_id" else []
        _need(others == expected, f"it skips by {adapter.skips}, and of another query holds {others}")
    _need(adapter.prepare(place.sink, newest + 1, place.reach) == (), "it prepares a sink that goes on where it was")
    _need(
        list(held(place.query_id, 0).batch_ids) == list(found.batch_ids), "asking and preparing changed what it holds"
    )


def check_undo(adapter: UndoingSink, place: SinkPlace, to_batch_id: int) -> None:
    """Hold an adapter that can undo against what ``UndoingSink`` promises; the sink is undone then.

    Args:
        adapter: the adapter.
        place: a sink that one query alone wrote to, every batch up to ``newest``.
        to_batch_id: the batch to go back to; below ``newest``.

    Raises:
        AssertionError: it does not keep a promise; says which.
    """
    _need(isinstance(adapter, UndoingSink), "it lacks something of the interface")
    newest = -1 if place.newest is None else place.newest
    _need(-1 < to_batch_id < newest, "the sink must hold batches behind the one to go back to")
    wish = UndoWish("conformance", to_batch_id, frozenset({place.query_id}), newest)
    found = adapter.find_undo(place.sink, wish, place.reach)
    later = tuple(range(to_batch_id + 1, newest + 1))
    _need(found.batch_ids == later, f"it finds {list(found.batch_ids)} to undo, and there are {list(later)}")
    _need(bool(found.target), "it does not say what it goes back to")
    _need(bool(found.removed), "it names nothing of what it takes out")
    _need(adapter.find_undo(place.sink, wish, place.reach) == found, "looking for what there is to undo changes it")
    for _ in range(2):
        adapter.undo_batches(place.sink, wish, adapter.find_undo(place.sink, wish, place.reach), place.reach)
    for query_id in (place.query_id, OTHER_QUERY_ID):
        held = adapter.held_batches(place.sink, query_id, to_batch_id + 1, place.reach)
        is_remembered = adapter.undo_needs_query_id and query_id == place.query_id
        _need(is_remembered or held.lacks(to_batch_id + 1), f"it is undone, and holds {list(held.batch_ids)}")


def check_warming(
    adapter: WarmingSink, place: SinkPlace, row: Any, scratch_uri: str, look: Callable[[], object]
) -> None:
    """Hold an adapter that can warm against what ``WarmingSink`` promises.

    Args:
        adapter: the adapter.
        place: a sink that somebody wrote to.
        row: a ``DataFrame`` of one row with the columns of the sink, and null in each.
        scratch_uri: an empty folder.
        look: gives all that can be seen of the sink by other ways than the adapter's: files, versions, offsets.

    Raises:
        AssertionError: it does not keep a promise; says which.
    """
    _need(isinstance(adapter, WarmingSink), "it lacks something of the interface")

    def seen() -> tuple[object, list[int]]:
        return look(), list(adapter.held_batches(place.sink, place.query_id, 0, place.reach).batch_ids)

    before = seen()
    for _ in range(2):
        adapter.warm(place.sink, row, scratch_uri, place.reach)
    _need(seen() == before, "warming changed the sink")


def _need(is_so: bool, otherwise: str) -> None:
    """An ``assert`` that also holds where python was told to leave those out."""
    if not is_so:
        raise AssertionError(otherwise)
