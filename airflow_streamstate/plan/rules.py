"""The rules of the comparison: operators, sources, state layout, settings."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from airflow_streamstate.checkpoint.guards import NO_STATE, PROVIDER, pinned_store, why_not
from airflow_streamstate.checkpoint.seed import PINNED_CONF_KEYS
from airflow_streamstate.older_python import zipped
from airflow_streamstate.plan.codes import FORGET, Difference, Verdict, difference
from airflow_streamstate.plan.expressions import USER_FUNCTION
from airflow_streamstate.plan.model import (
    DEDUPLICATIONS,
    PACE_OPTIONS,
    Expression,
    PlannedSource,
    QueryPlan,
    StateOperator,
    StateVariable,
    Window,
)
from airflow_streamstate.plan.segments import Names, is_asked, words_of
from airflow_streamstate.protocol.positions import WatermarkSpec

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
    """An operator as text: its kind and its keys."""
    keys = ", ".join(key.name or key.text for key in operator.keys)
    kind = operator.kind.replace("_", " ")
    return f"{kind} by {keys}" if keys else kind


def _windows(old: StateOperator, new: StateOperator) -> Iterator[Difference]:
    if len(old.windows) != len(new.windows):
        return  # a key more or less
    for before, now in zipped(old.windows, new.windows):
        if before != now:
            reason = f"{_window(before)} became {_window(now)}: open windows were started by the old one ({_MIXED})"
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
        yield difference("keys-reordered", new.path, reason, remedy=FORGET if new.kind in DEDUPLICATIONS else None)
    elif len(before) == len(now):
        for was, is_now in zipped(old.keys, new.keys):
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
            f"the aggregates {first} became {then}: state goes by their order, so each would continue with"
            f" the other's ({_MIXED} where the types are the same)"
        )
        yield difference("aggregates-reordered", path, reason)
    elif len(before) == len(now):
        for was, is_now in zipped(old, new):
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
        reason = f"left and right have changed places: {_REFUSED}, or each side continues with the other's rows"
        yield difference("join-sides-swapped", new.path, reason)
    elif (_as_comparisons(old.condition), _plain(old.keys)) != (_as_comparisons(new.condition), _plain(new.keys)):
        before, now = old.condition or "no condition", new.condition or "no condition"
        if before == now:
            before, now = (f"{before} on {keys}" for keys in _told(old.keys, new.keys))
        reason = (
            f"{before} became {now}: {_REFUSED} where keys change;"
            " where only the time bounds do, rows that would be met now were let go before"
        )
        yield difference("join-condition-changed", new.path, reason)


def _as_comparisons(condition: str) -> str:
    """A condition with each ``Between(x, low, high)`` as two comparisons, which Spark 3.5 makes of it at once."""
    start = condition.rfind(_BETWEEN)
    while start >= 0:
        parts, depth, at = [""], 0, start + len(_BETWEEN)
        while depth >= 0 and at < len(condition):
            char = condition[at]
            depth += (char == "(") - (char == ")")
            if char == "," and depth == 0:
                parts.append("")
            elif depth >= 0:
                parts[-1] += char
            at += 1
        if len(parts) != 3:  # a text with a comma or a parenthesis in it
            return condition
        value, low, high = (part.strip() for part in parts)
        condition = f"{condition[:start]}(({value} >= {low}) AND ({value} <= {high})){condition[at:]}"
        start = condition.rfind(_BETWEEN)
    return condition


def _join_columns(old: StateOperator, new: StateOperator, before: Names, now: Names) -> Iterator[Difference]:
    """The columns that a join keeps of its rows: those that are used by its condition, or above."""
    if old.kind != "stream_join" or old.fed_by == new.fed_by[::-1] != new.fed_by:
        return
    for side, was, is_now in zip(("left", "right"), _columns(old, before), _columns(new, now)):
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


# Pairs the operators and sources of a new plan with those of the old one.
#
# Spark binds state and offsets by position. Here an operator is matched by what feeds it and by its own shape, a
# source by what it reads; only the rest is matched by position.

Pairs = dict[int, int]
"""Position in the new plan -> position in the old one."""
Item = TypeVar("Item")


def match_operators(old: QueryPlan, new: QueryPlan) -> Pairs:
    """The operators that both plans have."""
    old_from, new_from = _origins(old), _origins(new)
    kinds: list[Callable[[tuple[StateOperator, Hashable]], Hashable]] = [
        lambda each: (shape_of(each[0]), each[0].fed_by),
        lambda each: (each[0].kind, each[0].fed_by),
        lambda each: (shape_of(each[0]), each[1]),
        lambda each: (each[0].kind, each[1]),
        lambda each: (each[0].kind, len(each[0].inputs)),
    ]
    pairs = _match(
        [(each, old_from[position]) for position, each in enumerate(old.operators)],
        [(each, new_from[position]) for position, each in enumerate(new.operators)],
        kinds,
    )
    taken = set(pairs.values())
    for position in set(range(min(len(old.operators), len(new.operators)))) - set(pairs):
        if position not in taken:
            pairs[position] = position
    return pairs


def match_sources(old: QueryPlan, new: QueryPlan) -> Pairs:
    """The sources that both plans have, by what they read.

    Of two that read the same, each is matched with the one of its name, then with the one at its place.
    """
    kinds: list[Callable[[PlannedSource], Hashable]] = [
        lambda each: (_what(each), each.name, each.format),
        lambda each: (_what(each), each.format),
        _what,
    ]
    return _match(old.sources, new.sources, kinds)


def is_reordered(pairs: Pairs) -> bool:
    """Whether the pairs are in another order."""
    order = [pairs[position] for position in sorted(pairs)]
    return order != sorted(order)


def shape_of(operator: StateOperator) -> Hashable:
    """What an operator does with its rows, apart from what feeds it and from the names of its results."""
    return (
        operator.kind,
        tuple((key.text, key.type) for key in operator.keys),
        operator.windows,
        tuple((aggregate.text, aggregate.type) for aggregate in operator.aggregates),
        (operator.join_type, operator.condition),
        (operator.function, operator.output_mode, operator.time_mode, operator.timeout),
        (operator.limit, operator.state_schema, operator.has_initial_state),
    )


def _what(source: PlannedSource) -> Hashable:
    return (source.adapter or source.format, source.identity)


def _origins(plan: QueryPlan) -> list[Hashable]:
    """For each operator, what the sources below it read."""
    return [
        frozenset(
            _what(plan.sources[number])
            for each in operator.inputs
            for number in each.sources
            if number < len(plan.sources)
        )
        for operator in plan.operators
    ]


def _match(old: Sequence[Item], new: Sequence[Item], kinds: Sequence[Callable[[Item], Hashable]]) -> Pairs:
    """Pair by the first kind of likeness, the rest by the next; those at the same place first, then in order."""
    pairs: Pairs = {}
    left_old, left_new = set(range(len(old))), set(range(len(new)))
    for likeness in kinds:
        for position in sorted(left_old & left_new):
            if likeness(old[position]) == likeness(new[position]):
                pairs[position] = position
        left_old -= set(pairs.values())
        left_new -= set(pairs)
        waiting: dict[Hashable, deque[int]] = defaultdict(deque)
        for position in sorted(left_old):
            waiting[likeness(old[position])].append(position)
        for position in sorted(left_new):
            if found := waiting[likeness(new[position])]:
                pairs[position] = found.popleft()
        left_old -= set(pairs.values())
        left_new -= set(pairs)
    return pairs


# What changes of sources, and of the watermarks over them, do.

STARTS = frozenset(
    {"startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp", "startingversion"}
    | {"starttimestamp", "stream-from-timestamp"}
)
"""Options that define where a source starts: Spark reads them only for a query without a checkpoint."""
PACES = PACE_OPTIONS | {"rowspersecond", "rowsperbatch", "rampuptime", "latestfirst", "maxfileage", "cleansource"}
PACES |= {"kafka.bootstrap.servers", "advancemillisperbatch"}
"""Options that define how much is read at once, when, or how, but not what."""


def source_differences(old: QueryPlan, new: QueryPlan, pairs: Pairs) -> Iterator[Difference]:
    """Sources that are new, gone, at another place, or read differently."""
    kept = set(pairs.values())
    gone = [position for position in range(len(old.sources)) if position not in kept]
    come = [position for position in range(len(new.sources)) if position not in pairs]
    for was, now in zip(gone, come):
        source = new.sources[now]
        reason = (
            f"{_named(old.sources[was])} became {_named(source)}: positions of the one mean nothing to the other, and"
            " Spark refuses them, or reads the other input from there"
        )
        yield difference("source-replaced", source.path, reason)
    for position in come[len(gone) :]:
        source = new.sources[position]
        yield difference("source-added", source.path, f"{_named(source)} is new: Spark refuses another number of them")
    for position in gone[len(come) :]:
        source = old.sources[position]
        yield difference(
            "source-removed", source.path, f"{_named(source)} is gone: Spark refuses another number of them"
        )
    names_lead = any(source.name for source in (*old.sources, *new.sources))
    if is_reordered(pairs) and not names_lead:
        order = ", ".join(_named(source) for source in new.sources)
        reason = f"the sources are now {order}, in that order: Spark goes by position"
        yield difference("sources-reordered", new.sources[min(pairs)].path, reason)
    for position, before in sorted(pairs.items()):
        yield from _one(old.sources[before], new.sources[position], new.is_stateful)


def _one(old: PlannedSource, new: PlannedSource, is_stateful: bool) -> Iterator[Difference]:
    if old.name != new.name:
        reason = f"the source {_named(new)} was named {old.name or 'nothing'}, and is named {new.name or 'nothing'}"
        yield difference(
            "source-renamed", new.path, f"{reason}: Spark finds offsets by names, and would read it from the start"
        )
    verdict: Verdict = "needs-drain" if is_stateful else "state-compatible"
    if old.format != new.format:
        reason = f"{new.identity} was read as {old.format}, and is read as {new.format}"
        yield difference("source-format-changed", new.path, reason, verdict=verdict)
    yield from _options(old, new, verdict)
    before, now = ({column.text: column.type for column in each.columns} for each in (old, new))
    if before != now:
        words = _changed_columns(before, now)
        yield difference("source-columns-changed", new.path, f"{_named(new)}: {words}, for what is read from here on")


def _options(old: PlannedSource, new: PlannedSource, verdict: Verdict) -> Iterator[Difference]:
    for name in sorted(old.options.keys() | new.options.keys()):
        was, now = old.options.get(name), new.options.get(name)
        if was == now:
            continue
        words = f"{_named(new)}: {name} was {_value(was)} and is {_value(now)}"
        if name in STARTS:
            yield difference("source-start-changed", new.path, f"{words}: the checkpoint states where it continues")
        elif name in PACES:
            yield difference("source-pace-changed", new.path, f"{words}: batches are cut differently")
        else:
            yield difference("source-reading-changed", new.path, words, verdict=verdict)


def _changed_columns(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    come = [f"{name} {now[name]} is new" for name in sorted(now.keys() - before.keys())]
    gone = [f"{name} is gone" for name in sorted(before.keys() - now.keys())]
    same = sorted(before.keys() & now.keys())
    other = [f"{name} was {before[name]} and is {now[name]}" for name in same if before[name] != now[name]]
    return ", ".join([*come, *gone, *other])


def _named(source: PlannedSource) -> str:
    return f"{source.format} {source.identity}".strip()


def _value(value: str | None) -> str:
    return "not set" if value is None else value


def watermark_differences(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    """Watermarks that are new, gone, or changed, in a plan with state, which uses them."""
    before, now = sorted(set(old.watermarks), key=_key), sorted(set(new.watermarks), key=_key)
    if before == now or not (old.is_stateful or new.is_stateful):
        return
    path = next((operator.path for operator in new.operators), "EventTimeWatermark")
    gone = [each for each in before if each not in now]
    come = [each for each in now if each not in before]
    for was in list(gone):
        same = next((each for each in come if each.column == was.column), None)
        if same is not None:
            yield difference("watermark-delay-changed", path, _delay(was, same))
            gone.remove(was)
            come.remove(same)
    for was, is_now in zip(list(gone), list(come)):
        words = f"the watermark is of {is_now.column} and no more of {was.column}: {_TIMES}"
        yield difference("watermark-column-changed", path, words)
    for each in come[len(gone) :]:
        words = f"{each.column} has a watermark of {each.delay_ms / 1000:g} s now"
        yield difference("watermark-added", path, f"{words}: what came too late before is in the state")
    for each in gone[len(come) :]:
        words = f"{each.column} has no watermark any more"
        yield difference("watermark-removed", path, f"{words}: what was closed or dropped by it is not in the state")


_TIMES = "what is in the state was kept, and closed, by other times"


def _delay(old: WatermarkSpec, new: WatermarkSpec) -> str:
    return (
        f"{new.column} may be {new.delay_ms / 1000:g} s late and no more {old.delay_ms / 1000:g} s: what was closed or"
        " dropped by the old delay stays so, what was let in stays in"
    )


def _key(watermark: WatermarkSpec) -> tuple[str, int]:
    return watermark.column, watermark.delay_ms


# What another layout of state, other settings, or another Spark do.

STAYS = ": a checkpoint stays as it started"
NEVER_CHANGES = ", which no checkpoint changes to"
"""What holds of a setting unless the state is rewritten."""
TIME_ZONE = "spark.sql.session.timeZone"
ANSI = "spark.sql.ansi.enabled"
_LAYOUT = frozenset(
    {
        "spark.sql.shuffle.partitions",
        PROVIDER,
        "spark.sql.streaming.stateStore.encodingFormat",
        "spark.sql.streaming.stateStore.checkpointFormatVersion",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    }
)
"""Settings that ``StateLayout`` covers."""
_HARMLESS = frozenset(
    {
        "spark.sql.streaming.noDataMicroBatches.enabled",
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled",
        "spark.sql.streaming.statefulOperator.allowMultiple",
        "spark.sql.files.ignoreMissingFiles",
        "spark.sql.datetime.java8API.enabled",
        "spark.sql.legacy.allowHashOnMapType",
        "spark.sql.storeAssignmentPolicy",
        "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition",
    }
)
"""Settings of when, where and whether something is done, or of what a sink makes of a row; not of values in the
state."""
_BY_FAILING = {
    ANSI: ("true", "false"),
    "spark.sql.mapKeyDedupPolicy": ("exception", "last_win"),
    "spark.sql.legacy.timeParserPolicy": ("exception", "corrected"),  # the legacy one reads old dates otherwise
    "spark.sql.files.ignoreCorruptFiles": ("false", "true"),
}
"""With the first value a batch fails where the second would matter, so all that was counted is the same with both. A
drain cannot pass a batch that fails so; only the change can."""
_TO_FAILING = {"spark.sql.legacy.timeParserPolicy": ("corrected", "exception")}
"""With the second value a batch fails where an old parser would read another time, and is else as with the first: the
way back from Spark 4 to 3.5 by their defaults."""
_BETWEEN = "Between("
_UTC = frozenset({"UTC", "Etc/UTC", "UCT", "Etc/UCT", "Universal", "Etc/Universal", "Zulu", "Etc/Zulu", "Z"})
"""Names of one zone."""
_OF_THE_ZONE = re.compile(
    r"\b(cast\(|DateFormat|ParseTo|To(Date|Timestamp|Unix|Utc)|Trunc|Hour|Minute|Second|DayOf|WeekOf|WeekDay|Month|"
    r"Quarter|Year|From(Unix|U[Tt][Cc])|Unix|GetTimestamp|Current|Now|Local|Make|Extract|DatePart|JsonTo|StructsTo|CsvTo|"
    r"XmlTo|Convert|TimestampAdd|TimestampDiff|Sequence)"
)
"""Expressions that may read the session's time zone, among them all casts."""
_OF_PYTHON = re.compile(r"Pandas|Arrow|Python|PySpark")
"""Operators that pass rows to Python; pandas and Arrow write their times in the session's zone."""
_TIME = re.compile(r"\b(timestamp|date)\b")
"""Types of times that depend on a zone."""
_TEXTS = frozenset({"json", "csv", "xml", "text"})
"""Formats whose times are texts, read in the session's zone where they name none."""


def state_differences(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    """Differences of partitions, store, formats, settings, Spark."""
    if old.is_stateful and new.is_stateful:
        yield from _layout(old, new)
    for name in sorted(old.settings.keys() & new.settings.keys()):  # else one Spark, or one release, has no word of it
        if name not in _LAYOUT and old.settings[name] != new.settings[name]:
            yield _setting(old, new, name)
    yield from _spark(old, new)


def _layout(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    for code, was, now, what in (
        ("partitions-changed", old.state.partitions, new.state.partitions, "partitions of state"),
        ("provider-changed", _last(old.state.provider), _last(new.state.provider), "as state store"),
        ("state-encoding-changed", old.state.encoding, new.state.encoding, "as encoding of state"),
    ):
        if was != now:
            reason = f"the session asks for {now} {what} and no more for {was}{STAYS}"
            yield difference(code, "", reason)
    if old.state.checkpoint_format != new.state.checkpoint_format:
        was_format, now_format = old.state.checkpoint_format, new.state.checkpoint_format
        reason = f"state checkpoint format {was_format} became {now_format}{NEVER_CHANGES}"
        yield difference("checkpoint-format-changed", "", reason)
    if old.state.changelog != new.state.changelog:
        word = "writes changelogs now" if new.state.changelog else "writes no changelogs any more"
        yield difference("changelog-changed", "", f"the state store {word}; it reads both")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _setting(old: QueryPlan, new: QueryPlan, name: str) -> Difference:
    was, now = old.settings[name], new.settings[name]
    words = f"{name} was {was} and is {now}"
    if name in PINNED_CONF_KEYS:
        return difference("setting-pinned", "", f"{words}; the checkpoint has its own value")
    if not (old.is_stateful and new.is_stateful):
        return difference("setting-harmless", "", f"{words}: no state was made by it")
    if name in _HARMLESS:
        return difference("setting-harmless", "", f"{words}: no value depends on it")
    if name == TIME_ZONE and not _reads_the_zone(new):
        return difference("setting-harmless", "", f"{words}: nothing before the state reads it")
    if name == TIME_ZONE and {was, now} <= _UTC:
        return difference("setting-harmless", "", f"{words}: one zone by two names")
    if (was.lower(), now.lower()) == _BY_FAILING.get(name):
        return difference("setting-harmless", "", f"{words}: what was counted had no error in it")
    if (was.lower(), now.lower()) == _TO_FAILING.get(name):
        return difference("setting-harmless", "", f"{words}: a batch fails with it, or counts the same")
    return difference("setting-changed", "", f"{words}: what is in the state was made by the old value")


def _reads_the_zone(plan: QueryPlan) -> bool:
    timed = [source for source in plan.sources if any(_TIME.search(column.type) for column in source.columns)]
    if any(source.format in _TEXTS for source in timed):
        return True
    top = min((index for index, node in enumerate(plan.nodes) if node.operator_id is not None), default=0)
    below = plan.nodes[top:]
    if any(_OF_THE_ZONE.search(node.text) for node in below):
        return True
    return bool(timed) and any(_OF_PYTHON.search(node.kind) or USER_FUNCTION in node.text for node in below)


def _spark(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    if old.spark_version == new.spark_version:
        return
    store = pinned_store(old.pinned or old.settings) if old.is_stateful else NO_STATE
    reason = why_not(old.spark_version, new.spark_version, store)
    words = f"Spark {old.spark_version or 'unknown'} became {new.spark_version or 'unknown'}"
    if reason is None:
        yield difference("spark-changed", "", f"{words}: state goes there")
    else:
        yield difference("spark-goes-back", "", f"{words}: {reason}")
