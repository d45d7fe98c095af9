"""What a change of one operator with state does to the existing state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.differences import Difference
from airflow_streamstate.plan.model import Expression, StateOperator, StateVariable, Window
from airflow_streamstate.plan.segments import Names, is_asked, words_of

_MIXED = "accepted silently: one result would mix rows of the old and the new rule"
_REFUSED = "Spark refuses the state"
_SEMI = "LeftSemi"
_WINDOWS = ("window", "session_window")


def operator_differences(
    old: StateOperator, new: StateOperator, asked_before: Names = None, asked_now: Names = None
) -> Iterator[Difference]:
    """The differences of an operator that both plans have, apart from what feeds it.

    Args:
        asked_before, asked_now: what is used of its rows (``segments.Stretches.asked``): Spark keeps no aggregate, and
            no column of a join, that is not used above.
    """
    if old.kind != new.kind:
        reason = f"{named(old)} became {named(new)}: {_REFUSED}, or takes it for what it is not"
        yield difference("operator-kind-changed", new.path, reason)
        return
    yield from _windows(old, new)
    yield from _keys(old, new)
    yield from _aggregates(_kept(old, asked_before), _kept(new, asked_now), new.path)
    yield from _join(old, new)
    yield from _join_columns(old, new, asked_before, asked_now)
    yield from _function(old, new)
    yield from _variables(old, new)
    if old.limit != new.limit:
        reason = f"the limit {old.limit} became {new.limit}, and the rows that were let through count for the new one"
        yield difference("limit-changed", new.path, reason)


def named(operator: StateOperator) -> str:
    """An operator in words: its kind and its keys."""
    keys = ", ".join(key.name or key.text for key in operator.keys)
    kind = operator.kind.replace("_", " ")
    return f"{kind} by {keys}" if keys else kind


def _windows(old: StateOperator, new: StateOperator) -> Iterator[Difference]:
    if len(old.windows) != len(new.windows):
        return  # a key more or less
    for before, now in zip(old.windows, new.windows, strict=True):
        if before != now:
            reason = f"{_window(before)} became {_window(now)}: open windows were begun by the old one ({_MIXED})"
            yield difference("window-changed", new.path, reason)


def _window(window: Window) -> str:
    if window.kind == "session":
        gap = window.gap or _ms(window.duration_ms)
        return f"a session of {window.column} with a gap of {gap}"
    words = f"a window of {_ms(window.duration_ms)} of {window.column}"
    if window.slide_ms is not None and window.slide_ms != window.duration_ms:
        words += f" each {_ms(window.slide_ms)}"
    return words + (f" from {_ms(window.offset_ms)}" if window.offset_ms else "")


def _ms(value: int | None) -> str:
    return "an expression" if value is None else f"{value / 1000:g} s"


def _keys(old: StateOperator, new: StateOperator) -> Iterator[Difference]:
    if old.kind == "stream_join":
        return  # they follow from its condition
    before, now = _plain(old.keys), _plain(new.keys)
    if len(old.windows) == len(new.windows) and old.windows != new.windows:
        # Differences of windows are reported by themselves: only their places count here.
        before, now = _without_windows(old.keys), _without_windows(new.keys)
    if before == now:
        return
    if Counter(before) == Counter(now):
        first, then = _told(old.keys, new.keys)
        reason = f"the keys {first} became {then}: {_REFUSED}, or each takes the other's place"
        yield difference("keys-reordered", new.path, reason)
    elif len(before) == len(now):
        for was, is_now in zip(old.keys, new.keys, strict=True):
            if (was.text, was.type) != (is_now.text, is_now.type) and not (_is_window(was) and _is_window(is_now)):
                reason = f"the key {_became(was, is_now)}: {_why(was, is_now)}"
                yield difference("key-changed", new.path, reason)
    else:
        gone, come = Counter(before) - Counter(now), Counter(now) - Counter(before)
        for text in _texts(come, gone):
            yield difference("key-added", new.path, f"{text} is a key now: {_REFUSED}")
        for text in _texts(gone, come):
            yield difference("key-removed", new.path, f"{text} is no key any more: {_REFUSED}")


def _plain(expressions: Sequence[Expression]) -> list[tuple[str, str]]:
    return [(each.text, each.type) for each in expressions]


def _without_windows(keys: Sequence[Expression]) -> list[tuple[str, str]]:
    return [("window", "") if _is_window(key) else (key.text, key.type) for key in keys]


def _is_window(key: Expression) -> bool:
    return key.text in _WINDOWS or (key.origin or key.text).startswith(tuple(f"{word}(" for word in _WINDOWS))


def _listed(expressions: Sequence[Expression]) -> str:
    return ", ".join(each.text for each in expressions) or "none"


def _kept(operator: StateOperator, asked: Names) -> tuple[Expression, ...]:
    """The aggregates that are kept: Spark leaves out those that are not used above."""
    return tuple(each for each in operator.aggregates if is_asked(each.name or each.text, asked))


def _aggregates(old: Sequence[Expression], new: Sequence[Expression], path: str) -> Iterator[Difference]:
    before, now = _plain(old), _plain(new)
    if before == now:
        return
    if Counter(before) == Counter(now):
        first, then = _told(old, new)
        reason = (
            f"the aggregates {first} became {then}: state goes by their order, so each would go on with"
            f" the other's ({_MIXED} where the types are the same)"
        )
        yield difference("aggregates-reordered", path, reason)
    elif len(before) == len(now):
        for was, is_now in zip(old, new, strict=True):
            if (was.text, was.type) != (is_now.text, is_now.type):
                yield difference("aggregate-changed", path, f"{_became(was, is_now)}: {_why(was, is_now)}")
    else:
        gone, come = Counter(before) - Counter(now), Counter(now) - Counter(before)
        for text in _texts(come, gone):
            yield difference("aggregate-added", path, f"{text} is computed, or asked for, now: {_REFUSED}")
        for text in _texts(gone, come):
            yield difference("aggregate-removed", path, f"{text} is not computed, or asked for, any more: {_REFUSED}")


def _became(old: Expression, new: Expression) -> str:
    before, now = _told((old,), (new,))
    return f"{before} became {now}"


def _told(old: Sequence[Expression], new: Sequence[Expression]) -> tuple[str, str]:
    """Both lists as texts that differ: with the types where the expressions alone would look the same."""
    before, now = _listed(old), _listed(new)
    return (before, now) if before != now else (_with_types(old), _with_types(new))


def _with_types(expressions: Sequence[Expression]) -> str:
    return ", ".join(_typed(each.text, each.type) for each in expressions) or "none"


def _typed(text: str, type_name: str) -> str:
    return f"{text} of type {type_name or 'unknown'}"


def _texts(these: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]]) -> list[str]:
    """Expressions by their texts; with the type where the other side has the same text."""
    known = {text for text, _ in others}
    return [_typed(text, type_name) if text in known else text for text, type_name in these]


def _why(old: Expression, new: Expression) -> str:
    """What Spark does with the state: it checks types, not meaning."""
    if old.type and new.type and old.type != new.type:
        return _REFUSED
    return f"{_REFUSED} where what it keeps is of another type; of the same type, it is {_MIXED}"


def _join(old: StateOperator, new: StateOperator) -> Iterator[Difference]:
    if old.kind != "stream_join":
        return
    if old.join_type != new.join_type and old.join_type == _SEMI:
        reason = f"{old.join_type} became {new.join_type}: rows that had met one of the other side are not in the state"
        yield difference("join-type-changed", new.path, reason)
    elif old.join_type != new.join_type:
        reason = f"{old.join_type} became {new.join_type}, which keep the same rows"
        yield difference("join-type-changed", new.path, reason, verdict="state-compatible")
    if len(new.fed_by) == 2 and old.fed_by == new.fed_by[::-1] and old.fed_by != new.fed_by:
        reason = f"left and right have changed places: {_REFUSED}, or each side goes on with the other's rows"
        yield difference("join-sides-swapped", new.path, reason)
    elif (old.condition, _plain(old.keys)) != (new.condition, _plain(new.keys)):
        before, now = old.condition or "no condition", new.condition or "no condition"
        if before == now:
            before, now = (f"{before} on {keys}" for keys in _told(old.keys, new.keys))
        reason = (
            f"{before} became {now}: {_REFUSED} where keys change;"
            " where only the time bounds do, rows that would be met now were let go before"
        )
        yield difference("join-condition-changed", new.path, reason)


def _join_columns(old: StateOperator, new: StateOperator, before: Names, now: Names) -> Iterator[Difference]:
    """The columns that a join keeps of its rows: those that are used by its condition, or above."""
    if old.kind != "stream_join" or old.fed_by == new.fed_by[::-1] != new.fed_by:
        return
    for side, was, is_now in zip(("left", "right"), _columns(old, before), _columns(new, now), strict=False):
        if was != is_now:
            reason = (
                f"of the {side} rows it keeps {', '.join(' '.join(each) for each in is_now)}, and kept"
                f" {', '.join(' '.join(each) for each in was)}: {_REFUSED}"
            )
            yield difference("join-columns-changed", f"{new.path}, {side}", reason)


def _columns(operator: StateOperator, asked: Names) -> list[list[tuple[str, str]]]:
    wanted = None if asked is None else asked | words_of([operator.condition])
    return [
        [(column.name or column.text, column.type) for column in each.columns if is_asked(column.name, wanted)]
        for each in operator.inputs
    ]


def _function(old: StateOperator, new: StateOperator) -> Iterator[Difference]:
    for code, was, now, what in (
        ("function-renamed", old.function, new.function, "the function"),
        ("time-mode-changed", old.time_mode, new.time_mode, "the time mode"),
        ("timeout-changed", old.timeout, new.timeout, "the timeout"),
        ("operator-mode-changed", old.output_mode, new.output_mode, "the operator's output mode"),
        ("state-schema-changed", old.state_schema, new.state_schema, "the schema of the state"),
    ):
        if was != now:
            yield difference(code, new.path, f"{what} {was or 'unknown'} became {now or 'unknown'}")
    if old.has_initial_state != new.has_initial_state:
        word = "has an initial state now" if new.has_initial_state else "has no initial state any more"
        yield difference("initial-state-changed", new.path, f"{named(new)} {word}: it counts only for a fresh start")


def _variables(old: StateOperator, new: StateOperator) -> Iterator[Difference]:
    """Only where both are known; those of a new plan are, once it ran on real state (a rehearsal)."""
    if old.variables is None or new.variables is None:
        return
    before, now = ({each.name: each for each in variables} for variables in (old.variables, new.variables))
    for name in sorted(now.keys() - before.keys()):
        yield difference("variable-added", new.path, f"the state variable {name} is new")
    for name in sorted(before.keys() - now.keys()):
        yield difference("variable-removed", new.path, f"the state variable {name} is gone")
    for name in sorted(before.keys() & now.keys()):
        was, is_now = before[name], now[name]
        if _stored(was) != _stored(is_now):
            reason = f"the state variable {name} was {_variable(was)} and is {_variable(is_now)} now"
            yield difference("variable-changed", new.path, reason)
        elif was.has_ttl != is_now.has_ttl:
            word = "got a time to live" if is_now.has_ttl else "lost its time to live"
            yield difference("variable-ttl-changed", new.path, f"the state variable {name} {word}: {_REFUSED}")


def _stored(variable: StateVariable) -> tuple[str, str, str]:
    return variable.kind, variable.key_schema, variable.value_schema


def _variable(variable: StateVariable) -> str:
    schema = " -> ".join(part for part in (variable.key_schema, variable.value_schema) if part)
    return f"a {variable.kind} of {schema}" if schema else f"a {variable.kind}"
