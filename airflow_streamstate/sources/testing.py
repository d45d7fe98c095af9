"""The promises of a partitioned source, as checks for its author's own tests. Each raises AssertionError."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_streamstate.older_python import zipped
from airflow_streamstate.sources.interface import Json, Part, PartitionedSource
from airflow_streamstate.sources.planner import MAX_STATE_BYTES, is_planned

NEVER_SAID = "conformance-secret-value"
_MOST_STEPS = 10_000


def check_partitioned_source(
    make: Callable[[Mapping[str, str]], PartitionedSource],
    options: Mapping[str, str],
    rows: Mapping[str, Sequence[Sequence[Any]]],
    *,
    columns: Sequence[int] | None = None,
) -> None:
    """Check what ``PartitionedSource`` and ``Part`` promise, over input that does not change while it runs.

    Args:
        make: the class, or what makes a source of options, names in lower case.
        options: under which it finds its input at once: without a time for rows to settle.
        rows: all rows of each part, in the order in which it gives them; of one part at least three.
        columns: the columns that ``rows`` has; None for all.
    """
    source = make(options)
    _need(any(len(found) >= 3 for found in rows.values()), "one part must have at least three rows")
    _check_surface(make, source, options)
    listed = list(source.list_parts())
    _need(sorted(listed) == sorted(rows), f"it lists {sorted(listed)}, and there are {sorted(rows)}")
    _need(len({*listed}) == len(listed), "it lists a part twice")
    _need(sorted(source.list_parts()) == sorted(listed), "it lists other parts the second time")
    for name, wanted in rows.items():
        _check_part(source, name, [tuple(row) for row in wanted], columns)
    _check_apart(source, rows, columns)


def _check_surface(
    make: Callable[[Mapping[str, str]], PartitionedSource], source: PartitionedSource, options: Mapping[str, str]
) -> None:
    _need(isinstance(source, PartitionedSource), "it is no PartitionedSource")
    _need(bool(source.row_schema()), "it has no schema")
    _need(source.identity() == make(options).identity(), "its identity changes")
    with_secret = make({**options, "password": NEVER_SAID, "token": NEVER_SAID})
    said = json.dumps([with_secret.identity(), *with_secret.remarks()])
    _need(NEVER_SAID not in said, "it shows a credential")
    _need(with_secret.identity() == source.identity(), "a credential changes its identity")


def _check_part(
    source: PartitionedSource, name: str, wanted: list[tuple[Any, ...]], columns: Sequence[int] | None
) -> None:
    for limit in (1, 2, len(wanted) + 1):
        states, given = _read(source, name, None, limit, columns)
        _need(given == wanted, f"part {name} gives {given} by {limit}, and has {wanted}")
        _need(len({*map(_text, states)}) == len(states), f"part {name} has one state at two places")
        for state, count in zipped(states, _counts(source, name, limit, columns)):
            for _ in range(2):
                _, rest = _read(source, name, state, len(wanted) + 1, columns)
                _need(rest == wanted[count:], f"part {name} gives {rest} behind {count} rows, and not {wanted[count:]}")
            _check_state(source, name, state, len(wanted) - count)


def _check_state(source: PartitionedSource, name: str, state: Json, left: int) -> None:
    part = source.build_part(name, state)
    try:
        behind = part.behind()
        _need(behind is None or isinstance(behind, int), f"part {name} is behind by {behind!r}")
        if behind is not None and source.unit == "rows":
            _need(behind == left, f"part {name} reports a lag of {behind} rows, and it is {left}")
        if behind is not None:
            _need((behind > 0) == (left > 0), f"part {name} reports a lag of {behind}, with {left} rows left")
        _need(part.lost() is None, f"part {name} reports that something is lost: {part.lost()}")
        _need(
            _text(part.snapshot()) == _text(state), f"part {name} has another state than the one that it was built of"
        )
        if left:
            _need(not part.is_finished(), f"part {name} is finished, with {left} rows left")
    finally:
        part.suspend()


def _check_apart(
    source: PartitionedSource, rows: Mapping[str, Sequence[Sequence[Any]]], columns: Sequence[int] | None
) -> None:
    """Parts that are read in turn give what each gives alone."""
    parts = {name: source.build_part(name, None) for name in rows}
    given: dict[str, list[tuple[Any, ...]]] = {name: [] for name in rows}
    for _ in range(max(map(len, rows.values())) + 2):
        for name, part in parts.items():
            given[name] += _step(source, name, part, 1, columns)
    for name, wanted in rows.items():
        _need(given[name] == [tuple(row) for row in wanted], f"part {name} gives other rows next to other parts")
    for part in parts.values():
        part.suspend()


def _read(
    source: PartitionedSource, name: str, state: Json, limit: int, columns: Sequence[int] | None
) -> tuple[list[Json], list[tuple[Any, ...]]]:
    """The states behind each step, and all rows, from a state on."""
    part = source.build_part(name, _copied(state))
    states: list[Json] = []
    given: list[tuple[Any, ...]] = []
    for _ in range(_MOST_STEPS):
        before = _text(part.snapshot())
        rows = _step(source, name, part, limit, columns)
        if not rows and _text(part.snapshot()) == before:
            part.suspend()
            return states, given
        if rows:
            _need(_text(part.snapshot()) != before, f"part {name} has given rows, and its state is the one of before")
            states.append(_copied(part.snapshot()))
        given += rows
    raise AssertionError(f"part {name} does not end")


def _counts(source: PartitionedSource, name: str, limit: int, columns: Sequence[int] | None) -> list[int]:
    """How many rows were given behind each step that gave any."""
    part = source.build_part(name, None)
    counts: list[int] = []
    for _ in range(_MOST_STEPS):
        before = _text(part.snapshot())
        rows = _step(source, name, part, limit, columns)
        if rows:
            counts.append((counts[-1] if counts else 0) + len(rows))
        elif _text(part.snapshot()) == before:
            break
    part.suspend()
    return counts


def _step(
    source: PartitionedSource, name: str, part: Part, limit: int, columns: Sequence[int] | None
) -> list[tuple[Any, ...]]:
    """What a part gives next, by whichever way it is read."""
    if not is_planned(part):
        rows = [_values(row) for row in part.poll(limit)]
        _need(len(rows) <= limit, f"part {name} was asked for {limit} rows, and gave {len(rows)}")
        return _chosen(rows, columns)
    begin = _copied(part.snapshot())
    end = part.plan_end(limit)  # type: ignore[attr-defined]
    if end is None:
        _need(_text(part.snapshot()) == _text(begin), f"part {name} plans nothing, and has moved")
        return []
    _need(_text(part.snapshot()) == _text(end.state), f"part {name} has planned, and its state is not the end's")
    if not end.units:
        return []
    read = [_planned_rows(source, name, begin, end.state) for _ in range(2)]
    _need(read[0] == read[1], f"part {name} gives other rows when it is read again")
    _need(bool(read[0]), f"part {name} has planned {end.units}, and gives no row")
    if source.unit == "rows":
        _need(len(read[0]) == end.units, f"part {name} has planned {end.units} rows, and gives {len(read[0])}")
    return _chosen(read[0], columns)


def _planned_rows(source: PartitionedSource, name: str, begin: Json, end: Json) -> list[tuple[Any, ...]]:
    part = source.build_part(name, _copied(begin))
    found: list[tuple[Any, ...]] = []
    for row in part.read(_copied(end)):  # type: ignore[attr-defined]
        if hasattr(row, "num_rows"):
            found += zipped(*(column.to_pylist() for column in row.columns))
        else:
            found.append(_values(row))
    part.suspend()
    return found


def _values(row: Any) -> tuple[Any, ...]:
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)


def _chosen(rows: Iterable[tuple[Any, ...]], columns: Sequence[int] | None) -> list[tuple[Any, ...]]:
    return [row if columns is None else tuple(row[at] for at in columns) for row in rows]


def _text(state: Json) -> str:
    try:
        text = json.dumps(state, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"a state is not JSON: {error}") from None
    _need(len(text) <= MAX_STATE_BYTES, f"a state has {len(text)} bytes, and may have {MAX_STATE_BYTES}")
    return text


def _copied(state: Json) -> Json:
    """As it comes back from an offset."""
    return json.loads(_text(state))


def _need(is_so: bool, otherwise: str) -> None:
    """An ``assert`` that ``python -O`` keeps."""
    if not is_so:
        raise AssertionError(otherwise)
