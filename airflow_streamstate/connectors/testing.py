"""Checks of what any connector has to promise, for the tests of its package; they need no test framework.

``check_source`` asks a connector without a system behind it; ``check_open_source`` one that is connected to a source
whose content the caller knows. Each check raises AssertionError with the broken promise.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_streamstate.connectors.sink import (
    HeldBatches,
    Sink,
    SinkConnector,
    SinkReach,
    UndoingSink,
    UndoOrder,
    WarmingSink,
)
from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    MeasuringConnector,
    NarrowingConnector,
    OffsetOrder,
    OpenSource,
    PassingOverConnector,
    Source,
    SourceConnector,
    Untold,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import pairwise

OTHER_QUERY_ID = "77777777-5b1c-4d4f-9f0f-0a4d2f3c1b11"
FAR_ID = 14
"""A batch id that continues from elsewhere, past one merge of a file sink's log."""


@dataclass(frozen=True)
class SinkPlace:
    """A sink whose content the caller knows.

    Attributes:
        query_id: of the query that wrote to it; "" if no query did.
        newest: its newest batch, if that query wrote every batch up to it; None for an unwritten sink.
    """

    sink: Sink
    reach: SinkReach
    query_id: str = ""
    newest: int | None = None


def check_sink(connector: SinkConnector, empty: SinkPlace, written: SinkPlace | None = None) -> None:
    """Check what ``SinkConnector`` promises.

    Args:
        empty: an unwritten sink of its kind; the check prepares it, which spoils it for other uses.
        written: a written one; None where the connector's sinks keep no batches.
    """
    _need(isinstance(connector, SinkConnector), "it lacks something of the interface")
    _need(bool(connector.name), "it has no name")
    _need(bool(connector.undo), "it does not say how its sink is undone")
    _need(
        connector.skips in ("batch_id", "query_id_and_batch_id", "nothing", "unknown"), "it does not say what it skips"
    )
    _need(connector.matches(empty.sink), "it does not know its own kind of sink")
    _need(not connector.matches(Sink("conformance-no-such-format", "/out")), "it matches a different kind of sink")
    _check_empty(connector, empty)
    if written is not None:
        _check_written(connector, written)
    else:
        _need(
            connector.skips in ("nothing", "unknown"), "it states that its sink skips batches, and shows none that does"
        )


def _check_empty(connector: SinkConnector, place: SinkPlace) -> None:
    for query_id in (None, OTHER_QUERY_ID):
        held = connector.held_batches(place.sink, query_id, 0, place.reach)
        _need(not list(held.batch_ids), f"an unwritten sink holds {list(held.batch_ids)}")
    _need(connector.prepare(place.sink, 0, place.reach) == (), "it prepares a sink for the first batch of all")
    connector.prepare(place.sink, FAR_ID, place.reach)
    _need(connector.prepare(place.sink, FAR_ID, place.reach) == (), "what is prepared is prepared again")
    held = connector.held_batches(place.sink, OTHER_QUERY_ID, FAR_ID, place.reach)
    _need(not list(held.batch_ids), "the batch that it was prepared for counts as held")


def _check_written(connector: SinkConnector, place: SinkPlace) -> None:
    newest = place.newest
    if newest is None:
        raise AssertionError("the written sink must have a newest batch")

    def held(query_id: str | None, from_batch_id: int) -> HeldBatches:
        return connector.held_batches(place.sink, query_id, from_batch_id, place.reach)

    found = held(place.query_id, 0)
    _need(not found.unknown_reason, f"it cannot state: {found.unknown_reason}")
    _need(list(found.batch_ids) == list(range(newest + 1)), f"it does not hold 0 to {newest}: {list(found.batch_ids)}")
    _need(list(held(place.query_id, newest).batch_ids) == [newest], "it names ids below the one that was asked for")
    _need(held(place.query_id, newest + 1).lacks(newest + 1), "it does not say that the next batch is missing")
    for query_id in (OTHER_QUERY_ID, None):
        others = list(held(query_id, 0).batch_ids)
        expected = list(range(newest + 1)) if connector.skips == "batch_id" else []
        _need(others == expected, f"it skips by {connector.skips}, and of another query holds {others}")
    _need(connector.prepare(place.sink, newest + 1, place.reach) == (), "it prepares a sink that continues")
    _need(
        list(held(place.query_id, 0).batch_ids) == list(found.batch_ids), "asking and preparing changed what it holds"
    )


def check_undo(connector: UndoingSink, place: SinkPlace, to_batch_id: int) -> None:
    """Check what ``UndoingSink`` promises; the sink is undone then.

    Args:
        place: a sink that only one query wrote to, every batch up to ``newest``.
        to_batch_id: the batch to go back to; below ``newest``.
    """
    _need(isinstance(connector, UndoingSink), "it lacks something of the interface")
    newest = -1 if place.newest is None else place.newest
    _need(-1 < to_batch_id < newest, "the sink must hold batches behind the one to go back to")
    request = UndoOrder("conformance", to_batch_id, frozenset({place.query_id}), newest)
    found = connector.find_undo(place.sink, request, place.reach)
    later = tuple(range(to_batch_id + 1, newest + 1))
    _need(found.batch_ids == later, f"it finds {list(found.batch_ids)} to undo, and there are {list(later)}")
    _need(bool(found.target), "it does not say what it goes back to")
    _need(bool(found.removed), "it names nothing of what it removes")
    _need(
        connector.find_undo(place.sink, request, place.reach) == found, "looking for what there is to undo changes it"
    )
    for _ in range(2):
        connector.undo_batches(place.sink, request, connector.find_undo(place.sink, request, place.reach), place.reach)
    for query_id in (place.query_id, OTHER_QUERY_ID):
        held = connector.held_batches(place.sink, query_id, to_batch_id + 1, place.reach)
        is_remembered = connector.undo_needs_query_id and query_id == place.query_id
        _need(is_remembered or held.lacks(to_batch_id + 1), f"it is undone, and holds {list(held.batch_ids)}")


def check_warming(
    connector: WarmingSink, place: SinkPlace, row: Any, scratch_uri: str, look: Callable[[], object]
) -> None:
    """Check what ``WarmingSink`` promises.

    Args:
        place: a written sink.
        row: a ``DataFrame`` of one row with the columns of the sink, and null in each.
        scratch_uri: an empty folder.
        look: gives all that can be seen of the sink without the connector: files, versions, offsets.
    """
    _need(isinstance(connector, WarmingSink), "it lacks something of the interface")

    def seen() -> tuple[object, list[int]]:
        return look(), list(connector.held_batches(place.sink, place.query_id, 0, place.reach).batch_ids)

    before = seen()
    for _ in range(2):
        connector.warm(place.sink, row, scratch_uri, place.reach)
    _need(seen() == before, "warming changed the sink")


NEVER_SAID = "conformance-secret-value"
_OPPOSITE: Mapping[OffsetOrder, OffsetOrder] = {"same": "same", "ahead": "behind", "behind": "ahead", "apart": "apart"}


def check_source(
    connector: SourceConnector, own: Sequence[Source], foreign: Sequence[Source], offsets: Sequence[str]
) -> None:
    """Check what ``SourceConnector`` promises.

    Args:
        own: different sources of its kind.
        foreign: sources of other kinds.
        offsets: of one source of its kind, as Spark writes them, each ahead of the one before it; at least two.
    """
    _need(isinstance(connector, SourceConnector), "it lacks something of the interface")
    _need(bool(connector.name), "it has no name")
    _check_identities(connector, own, foreign)
    _check_order(connector, offsets)
    if isinstance(connector, MeasuringConnector):
        _check_measures(connector, offsets)
    for source in own:
        _need(isinstance(connector.continues(source, offsets[-1]), bool), "whether it reads on is yes or no")
        if isinstance(connector, NarrowingConnector):
            _check_parts(connector, source, offsets[-1])
    for source in (*own, *foreign):
        if isinstance(connector, PassingOverConnector):
            _need(
                isinstance(connector.passes_over_lost(source), bool), "whether it passes over lost input is yes or no"
            )
        remarks = connector.remarks(source)
        _need(isinstance(remarks, tuple), "remarks are a tuple of sentences")
        _need(all(isinstance(remark, str) and remark for remark in remarks), "remarks are a tuple of sentences")
    _need(connector.explain("java.lang.Error: something unheard of") is None, "it explains what it does not know")


def check_open_source(opened: OpenSource, start: str, end: str, rows_between: int | None) -> None:
    """Check what ``OpenSource`` promises of a connected source without lost input; it is closed then.

    Args:
        start: an offset before its input.
        end: the offset after its input.
        rows_between: how many rows (or files) are between the two; None where the connector does not know.
    """
    marks = opened.marks()
    _need(all(isinstance(text, str) for pair in marks.items() for text in pair), "marks are texts")
    _need(dict(opened.marks()) == dict(marks), "the marks of one source change")
    for offset in (start, end):
        for known in (marks, {}):
            found = opened.preflight(offset, known)
            _need(found.lost == (), f"it reports that something is lost: {found.lost}")
            _need(found.readable == offset, "nothing is lost, and yet it would start elsewhere")
    behind = [opened.lag(offset) for offset in (start, end)]
    told = [lag.behind for lag in behind if isinstance(lag, Lag)]
    if rows_between is None:
        _need(told == [], "it reports a lag that was not expected")
        _need(all(lag.reason for lag in behind if isinstance(lag, Untold)), "it does not say why it reports no lag")
    else:
        _need(told == [rows_between, 0], f"its lag is not true: {behind}")
    opened.close()
    opened.close()


def _check_identities(connector: SourceConnector, own: Sequence[Source], foreign: Sequence[Source]) -> None:
    said = [connector.identify(source) for source in own]
    _need(all(text is not None for text in said), "it does not know its own kind of source")
    _need(len(set(said)) == len(said), f"two sources have one identity: {said}")
    _need([connector.identify(source) for source in own] == said, "an identity changes between two calls")
    for source in foreign:
        _need(connector.identify(source) is None, f"it identifies a different kind of source: {source.format}")
    for source in own:
        secretive = {"password": NEVER_SAID, f"{source.format}.sasl.jaas.config": NEVER_SAID, "token": NEVER_SAID}
        with_secrets = replace(source, options={**source.options, **secretive})
        _need(connector.identify(with_secrets) == connector.identify(source), "a credential changes an identity")
        said_of_it = json.dumps([connector.identify(with_secrets), connector.remarks(with_secrets)])
        _need(NEVER_SAID not in said_of_it, "it shows a credential")


def _check_parts(connector: NarrowingConnector, source: Source, offset: str) -> None:
    found = connector.narrow(source, offset)
    if found is None:
        return
    _need(bool(found.read and found.left), "it leaves nothing out, or reads nothing, and has a part of the offset")
    _need(not found.read & {*found.left}, "what it reads and what it leaves out overlap")
    _need(connector.narrow(source, found.kept) is None, "it leaves something out of what it kept")


def _check_order(connector: SourceConnector, offsets: Sequence[str]) -> None:
    ordered = [NO_OFFSET, *offsets]
    for (at, first), (other_at, second) in itertools.product(enumerate(ordered), repeat=2):
        order = connector.compare(first, second)
        _need(order == _OPPOSITE[connector.compare(second, first)], f"one order each way: {first} {second}")
        expected = "same" if at == other_at else "ahead" if at > other_at else "behind"
        _need(order == expected, f"{first} is {expected} of {second}, and it reports {order}")
    for text in ('"of another kind"', "[1]", "{}}", ""):
        try:
            connector.compare(text, offsets[0])
        except ValueError:
            continue
        raise AssertionError(f"it compares what is no offset of its kind: {text!r}")


def _check_measures(connector: MeasuringConnector, offsets: Sequence[str]) -> None:
    for first, second in pairwise(offsets):
        forth, back, same = (
            connector.between(first, second),
            connector.between(second, first),
            connector.between(first, first),
        )
        _need(forth is None or forth.behind >= 0, f"less than nothing is between {first} and {second}")
        _need(back is None or back.behind == 0, f"{first} covers nothing that {second} does not")
        _need(same is None or same.behind == 0, f"{first} covers what it covers")


def _need(is_so: bool, otherwise: str) -> None:
    """An ``assert`` that ``python -O`` keeps."""
    if not is_so:
        raise AssertionError(otherwise)
