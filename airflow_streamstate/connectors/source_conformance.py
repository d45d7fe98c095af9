"""What any adapter has to keep to: call these from a test of your own; they need no test framework.

``check_source`` asks an adapter without a system behind it; ``check_open_source`` asks one that is connected to a
source of which the caller knows what is there.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    MeasuringAdapter,
    NarrowingAdapter,
    OffsetOrder,
    OpenSource,
    Source,
    SourceAdapter,
    Untold,
)

NEVER_SAID = "conformance-secret-value"
_OPPOSITE: Mapping[OffsetOrder, OffsetOrder] = {"same": "same", "ahead": "behind", "behind": "ahead", "apart": "apart"}


def check_source(
    adapter: SourceAdapter, own: Sequence[Source], foreign: Sequence[Source], offsets: Sequence[str]
) -> None:
    """Hold an adapter against what ``SourceAdapter`` promises.

    Args:
        adapter: the adapter.
        own: sources of its kind, each another one.
        foreign: sources of other kinds.
        offsets: of one source of its kind, as Spark writes them, each ahead of the one before it; at least two.

    Raises:
        AssertionError: it does not keep a promise; says which.
    """
    _need(isinstance(adapter, SourceAdapter), "it lacks something of the interface")
    _need(bool(adapter.name), "it has no name")
    _check_identities(adapter, own, foreign)
    _check_order(adapter, offsets)
    if isinstance(adapter, MeasuringAdapter):
        _check_measures(adapter, offsets)
    for source in own:
        _need(isinstance(adapter.continues(source, offsets[-1]), bool), "whether it reads on is yes or no")
        if isinstance(adapter, NarrowingAdapter):
            _check_parts(adapter, source, offsets[-1])
    for source in (*own, *foreign):
        remarks = adapter.remarks(source)
        _need(isinstance(remarks, tuple), "remarks are a tuple of sentences")
        _need(all(isinstance(remark, str) and remark for remark in remarks), "remarks are a tuple of sentences")
    _need(adapter.explain("java.lang.Error: something that nobody knows") is None, "it explains what it does not know")


def check_open_source(opened: OpenSource, start: str, end: str, rows_between: int | None) -> None:
    """Hold a connected source, of which nothing is lost, against what ``OpenSource`` promises; it is closed then.

    Args:
        opened: what ``open`` gave.
        start: an offset before its input.
        end: the offset behind its input.
        rows_between: how many rows (or files) lie between the two; None where the adapter cannot tell.

    Raises:
        AssertionError: it does not keep a promise; says which.
    """
    marks = opened.marks()
    _need(all(isinstance(text, str) for pair in marks.items() for text in pair), "marks are texts")
    _need(dict(opened.marks()) == dict(marks), "the marks of one source change")
    for offset in (start, end):
        for known in (marks, {}):
            found = opened.preflight(offset, known)
            _need(found.lost == (), f"it says that something is lost: {found.lost}")
            _need(found.readable == offset, "nothing is lost, and yet it would start elsewhere")
    behind = [opened.lag(offset) for offset in (start, end)]
    told = [lag.behind for lag in behind if isinstance(lag, Lag)]
    if rows_between is None:
        _need(told == [], "it tells a lag that was not expected")
        _need(all(lag.reason for lag in behind if isinstance(lag, Untold)), "it does not say why it tells no lag")
    else:
        _need(told == [rows_between, 0], f"its lag is not true: {behind}")
    opened.close()
    opened.close()


def _check_identities(adapter: SourceAdapter, own: Sequence[Source], foreign: Sequence[Source]) -> None:
    said = [adapter.identify(source) for source in own]
    _need(all(text is not None for text in said), "it does not know a source of its own kind")
    _need(len(set(said)) == len(said), f"two sources have one identity: {said}")
    _need([adapter.identify(source) for source in own] == said, "an identity changes between two calls")
    for source in foreign:
        _need(adapter.identify(source) is None, f"it takes another's source for its own: {source.format}")
    for source in own:
        secretive = {"password": NEVER_SAID, f"{source.format}.sasl.jaas.config": NEVER_SAID, "token": NEVER_SAID}
        with_secrets = replace(source, options={**source.options, **secretive})
        _need(adapter.identify(with_secrets) == adapter.identify(source), "a credential changes an identity")
        said_of_it = json.dumps([adapter.identify(with_secrets), adapter.remarks(with_secrets)])
        _need(NEVER_SAID not in said_of_it, "it says a credential")


def _check_parts(adapter: NarrowingAdapter, source: Source, offset: str) -> None:
    found = adapter.narrow(source, offset)
    if found is None:
        return
    _need(bool(found.read and found.left), "it leaves nothing out, or reads nothing, and has a part of the offset")
    _need(not found.read & {*found.left}, "what it reads and what it leaves out overlap")
    _need(adapter.narrow(source, found.kept) is None, "it leaves something out of what it kept")


def _check_order(adapter: SourceAdapter, offsets: Sequence[str]) -> None:
    ordered = [NO_OFFSET, *offsets]
    for (at, first), (other_at, second) in itertools.product(enumerate(ordered), repeat=2):
        order = adapter.compare(first, second)
        _need(order == _OPPOSITE[adapter.compare(second, first)], f"one order each way: {first} {second}")
        expected = "same" if at == other_at else "ahead" if at > other_at else "behind"
        _need(order == expected, f"{first} is {expected} of {second}, and it says {order}")
    for text in ('"of another kind"', "[1]", "{}}", ""):
        try:
            adapter.compare(text, offsets[0])
        except ValueError:
            continue
        raise AssertionError(f"it compares what is no offset of its kind: {text!r}")


def _check_measures(adapter: MeasuringAdapter, offsets: Sequence[str]) -> None:
    for first, second in itertools.pairwise(offsets):
        forth, back, same = (
            adapter.between(first, second),
            adapter.between(second, first),
            adapter.between(first, first),
        )
        _need(forth is None or forth.behind >= 0, f"less than nothing lies between {first} and {second}")
        _need(back is None or back.behind == 0, f"{first} covers nothing that {second} does not")
        _need(same is None or same.behind == 0, f"{first} covers what it covers")


def _need(is_so: bool, otherwise: str) -> None:
    """An ``assert`` that also holds where python was told to leave those out."""
    if not is_so:
        raise AssertionError(otherwise)
