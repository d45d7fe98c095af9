"""The plan of a query before and after a change: what a restore would do, advice, and moves to another Spark."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

from airflow_streamstate.checkpoint.guards import (
    HDFS_BACKED_PROVIDER,
    OLDER_LISTS,
    ROCKSDB_PROVIDER,
    Line,
    line_of,
    offset_log_of,
    pinned_store,
    state_store_of,
    why_not,
)
from airflow_streamstate.checkpoint.log import OffsetEntry
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.plan.codes import (
    Advice,
    Comparison,
    DeploymentComparison,
    Difference,
    advice,
    compared,
    difference,
    gravest,
)
from airflow_streamstate.plan.expressions import USER_FUNCTION
from airflow_streamstate.plan.model import DEDUPLICATIONS, PlannedSink, QueryPlan, StateOperator
from airflow_streamstate.plan.record import MOST_IN_ORDER
from airflow_streamstate.plan.rules import (
    Pairs,
    is_reordered,
    match_operators,
    match_sources,
    named,
    operator_differences,
    source_differences,
    state_differences,
    watermark_differences,
)
from airflow_streamstate.plan.segments import NOT_CUT, Stretches, changes, stretches_of, why_too_large

# Advice on a plan, independent of the plan before it: unbounded state, code that no plan shows.

_USER_CODE = frozenset({"transform_with_state", "apply_in_pandas_with_state", "flat_map_groups_with_state"})
_SINK_FUNCTIONS = frozenset({"foreachbatch", "foreach"})


def advice_on(plan: QueryPlan) -> Iterator[Advice]:
    for source in plan.sources:
        if source.sends_once:
            text = (
                f"The source {source.identity or source.format} cannot be read again ({source.sends_once}): what was"
                " read and not committed when a driver ends is lost, and restore, rollback and seed need"
                f" --accept-lost-input {plan.query_name}."
            )
            yield advice("source-sends-once", source.path, text)
    for operator in plan.operators:
        yield from _bound(plan, operator)
        if operator.kind in _USER_CODE:
            text = (
                f"The body of {operator.function or 'its function'} is not in a plan: where it counts otherwise than"
                " before, results mix without a difference here."
            )
            yield advice("function-unseen", operator.path, text)
    if plan.operators and any(
        USER_FUNCTION in node.text for node in plan.nodes if node.operator_id is None or node.kind == "Aggregate"
    ):
        text = (
            "The plan calls functions of the script by their names; what they do is not in it. Where one before state"
            " computes otherwise than before, drain and seed."
        )
        yield advice("function-unseen", plan.operators[0].path, text)
    if plan.sink.format in _SINK_FUNCTIONS or plan.sink.kind.lower() in _SINK_FUNCTIONS:
        text = "What the function of the sink does is not in a plan: its own changes are yours to judge."
        yield advice("sink-function-unseen", "", text)


def _bound(plan: QueryPlan, operator: StateOperator) -> Iterator[Advice]:
    has_time = any(key.is_event_time for key in operator.keys) or bool(operator.windows)
    if operator.kind == "aggregate" and plan.output_mode != "complete" and not (plan.watermarks and has_time):
        yield _unbounded(
            operator, "Group by a window of an event time with a watermark, or count on keys that are few."
        )
    elif operator.kind == "session_window" and not plan.watermarks:
        text = f"Nothing ever removes state of the {named(operator)}: give its event time a watermark."
        yield advice("session-without-bound", operator.path, text)
    elif operator.kind == "deduplicate" and not (plan.watermarks and has_time):
        text = (
            f"The {named(operator)} keeps every key for ever: use dropDuplicatesWithinWatermark, or add the event"
            " time to its columns."
        )
        yield advice("duplicates-forever", operator.path, text)
    elif operator.kind == "stream_join" and not plan.watermarks:
        yield _unbounded(operator, "Give both sides watermarks, and the condition a bound of time.")
    elif operator.kind == "transform_with_state":
        yield from _variables(operator)
    elif operator.kind in _USER_CODE and operator.timeout == "NoTimeout":
        text = f"The {named(operator)} has no timeout: what a key leaves stays unless the function removes it."
        yield advice("timeout-missing", operator.path, text)


def _variables(operator: StateOperator) -> Iterator[Advice]:
    bare = [each.name for each in operator.variables or () if each.kind != "timer" and not each.has_ttl]
    if operator.time_mode in ("None", "NoTime", ""):
        text = f"The {named(operator)} has neither timers nor time to live: what a key leaves stays."
        yield advice("variables-without-ttl", operator.path, text)
    elif bare:
        text = f"Variables without time to live: {', '.join(bare)}. See that timers remove what they hold."
        yield advice("variables-without-ttl", operator.path, text)


def _unbounded(operator: StateOperator, cure: str) -> Advice:
    return advice("state-without-bound", operator.path, f"Nothing ever removes state of the {named(operator)}. {cure}")


SKIPPING = frozenset({"batch_id", "query_id_and_batch_id"})
"""Sinks that skip a batch whose id they hold."""
NO_BARRIER = frozenset({"continuous", "real_time"})


def output_differences(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    """Differences of the trigger, the output mode, and the sink."""
    if old.trigger != new.trigger:
        words = f"the trigger {old.trigger} became {new.trigger}"
        if new.trigger in NO_BARRIER:
            yield difference("trigger-unsupported", "", f"{words}, which knows no barrier")
        else:
            yield difference("trigger-changed", "", words)
    yield from _mode(old, new)
    yield from _sink(old.sink, new.sink)


def result_differences(before: Stretches, now: Stretches) -> Iterator[Difference]:
    """Differences above all operators with state, of two plans that were cut there."""
    for kind, words in changes(before.output, now.output):
        yield difference("output-changed", kind, f"above all state: {words}")


def column_differences(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    """Differences of the written columns, by names and types."""
    before, now = ([(each.name or each.text, each.type) for each in plan.columns] for plan in (old, new))
    if before != now:
        words = f"{_columns(now)} is written, and was {_columns(before)}"
        yield difference("output-columns-changed", "", words)


def _columns(columns: list[tuple[str, str]]) -> str:
    return ", ".join(" ".join(each).strip() for each in columns) or "nothing"


def _mode(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    if old.output_mode == new.output_mode:
        return
    words = f"the output mode {old.output_mode} became {new.output_mode}"
    if "complete" in (old.output_mode, new.output_mode) and new.is_stateful:
        why = "only complete output keeps what a watermark has closed"
        yield difference("output-mode-complete", "", f"{words}: {why}")
    else:
        yield difference("output-mode-changed", "", f"{words}, of the same state")


def _sink(old: PlannedSink, new: PlannedSink) -> Iterator[Difference]:
    before, now = old.described, new.described
    if before == now:
        before, now = f"{before} as {old.format or 'unknown'}", f"{now} as {new.format or 'unknown'}"
    if (old.kind.partition(":")[0], old.target) != (new.kind.partition(":")[0], new.target):
        if new.skips in SKIPPING:
            how = "from any query" if new.skips == "batch_id" else "of this query"
            reason = f"{before} became {now}, which skips a batch whose id it holds, {how}"
            yield difference("sink-replaced", "", reason)
        else:
            yield difference("sink-redirected", "", f"{before} became {now}")
    elif (old.format, old.kind) != (new.format, new.kind):
        yield difference("sink-format-changed", "", f"{before} became {now}")
    elif old.partitioned_by != new.partitioned_by:
        reason = f"{new.target} was partitioned by {_listed(old)} and is by {_listed(new)}"
        yield difference("sink-partitioning-changed", "", reason)
    for name in sorted(old.options.keys() | new.options.keys()):
        was, is_now = old.options.get(name, "not set"), new.options.get(name, "not set")
        if was != is_now:
            yield difference("sink-options-changed", "", f"{name} was {was} and is {is_now}")


def _listed(sink: PlannedSink) -> str:
    return ", ".join(sink.partitioned_by) or "nothing"


_UNMATCHED = -1


def set_differences(old: QueryPlan, new: QueryPlan, pairs: Pairs) -> Iterator[Difference]:
    """Operators that are new, gone, or at another place, so that Spark would give them another one's state."""
    for position, operator in enumerate(new.operators):
        if position not in pairs:
            reason = f"{named(operator)} is new: Spark finds no state for it, and refuses, or gives it another's"
            yield difference("operator-added", operator.path, reason)
    kept = set(pairs.values())
    for position, operator in enumerate(old.operators):
        if position not in kept:
            reason = f"{named(operator)} is gone: Spark refuses state that no operator asks for, or gives it to another"
            yield difference("operator-removed", operator.path, reason)
    if is_reordered(pairs):
        for position in sorted(pairs):
            if pairs[position] != position:
                yield _moved(old, new.operators[position], position, pairs[position])


def _moved(old: QueryPlan, operator: StateOperator, position: int, before: int) -> Difference:
    words = f"{named(operator)}, fed by {_fed(operator)}, was operator {before} and is operator {position}"
    if position < len(old.operators):
        there = old.operators[position]
        words += f": Spark goes by position, and would give it the state of {named(there)}, fed by {_fed(there)}"
    return difference("operators-swapped", operator.path, words)


def _fed(operator: StateOperator) -> str:
    text = " and ".join(each.text for each in operator.inputs) or "nothing"
    return text if len(text) <= 200 else f"{text[:200]}…"


def input_differences(
    old: QueryPlan, new: QueryPlan, before: Stretches, now: Stretches, operators: Pairs, sources: Pairs
) -> Iterator[Difference]:
    """Differences in what happens to rows on their way to an operator that both plans have.

    Args:
        old, new: the plans.
        before, now: the same, cut at their operators.
        operators, sources: positions in the new plan -> in the old one.
    """
    is_same_set = len(operators) == len(old.operators) == len(new.operators) and len(sources) == len(
        old.sources
    ) == len(new.sources)
    for position, of_old in sorted(operators.items()):
        was, is_now = old.operators[of_old], new.operators[position]
        if was.fed_by == is_now.fed_by or is_swapped(was, is_now):
            continue
        for side, (old_stretch, new_stretch) in enumerate(
            zip(before.inputs.get(was.operator_id, ()), now.inputs.get(is_now.operator_id, ()))
        ):
            for _, words in changes(old_stretch, new_stretch):
                where = f"{is_now.path}, {('left', 'right')[side]}" if len(is_now.inputs) == 2 else is_now.path
                reason = f"before {named(is_now)}: {words}; what the state holds was made by the old rule"
                yield difference("input-changed", where, reason)
        feeders = [(each.sources, each.operators) for each in was.inputs]
        if is_same_set and feeders != _mapped(is_now, operators, sources):
            reason = f"{named(is_now)} was fed by {_fed(was)}, and is fed by {_fed(is_now)}"
            yield difference("input-moved", is_now.path, reason)


def is_swapped(old: StateOperator, new: StateOperator) -> bool:
    """Whether the two sides of a join have changed places, and are otherwise the same."""
    return len(new.fed_by) == 2 and old.fed_by == new.fed_by[::-1]


def _mapped(operator: StateOperator, operators: Pairs, sources: Pairs) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The sources and operators that feed each side of a new operator, in the numbers of the old plan."""
    return [
        (
            tuple(sorted(sources.get(number, _UNMATCHED) for number in each.sources)),
            tuple(sorted(operators.get(number, _UNMATCHED) for number in each.operators)),
        )
        for each in operator.inputs
    ]


def compare(old: QueryPlan, new: QueryPlan) -> Comparison:
    """Compare two plans of one query: ``old`` as recorded when the running version started, ``new`` to follow it."""
    return compared(_differences(old, new), advice_on(new))


def _differences(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    yield from output_differences(old, new)
    yield from state_differences(old, new)
    if old.reading != new.reading:
        reason = f"the plans were written down in way {old.reading} and in way {new.reading}"
        lighter = None if old.is_stateful or new.is_stateful else "state-compatible"
        yield difference("not-comparable", "", reason, verdict=lighter)  # type: ignore[arg-type]
        return
    is_same = (old.nodes, old.operators) == (new.nodes, new.operators)
    too_large = [(plan, why) for plan in (old, new) if (why := why_too_large(plan))]
    if too_large and not is_same:
        which = "the plan of before" if too_large[0][0] is old else "the new plan"
        yield difference("plan-too-large", "", f"{which} is too large to compare: {too_large[0][1]}")
        return
    operators, sources = match_operators(old, new), match_sources(old, new)
    before = NOT_CUT if too_large else stretches_of(old)
    now = before if is_same else stretches_of(new)
    yield from source_differences(old, new, sources)
    yield from watermark_differences(old, new)
    yield from set_differences(old, new, operators)
    yield from input_differences(old, new, before, now, operators, sources)
    for position, of_old in sorted(operators.items()):
        was, is_now = old.operators[of_old], new.operators[position]
        yield from operator_differences(
            was, is_now, before.asked.get(was.operator_id), now.asked.get(is_now.operator_id)
        )
    yield from result_differences(before, now)
    yield from column_differences(old, new)


def compare_deployments(old: Mapping[str, QueryPlan], new: Mapping[str, QueryPlan]) -> DeploymentComparison:
    """Compare all queries of two versions of a stream. State and positions belong to the names of queries.

    Args:
        old: name -> plan as recorded, of the running version.
        new: name -> plan, of the version that will follow it.
    """
    queries: dict[str, Comparison] = {}
    renamed = _renamed(old, new)
    for name in sorted(old.keys() & new.keys()):
        comparison = compare(old[name], new[name])
        other = _swapped_with(name, old, new)
        if other is not None:
            reason = (
                f"{name} does what {other} did, and {other} what {name} did: each would continue with the other's state"
            )
            found = difference("queries-swapped", "", reason)
            comparison = compared((found, *comparison.differences), comparison.advice)
        queries[name] = comparison
    for name in sorted(new.keys() - old.keys()):
        queries[name] = compared([_new(name, renamed.get(name))], advice_on(new[name]))
    for name in sorted(old.keys() - new.keys()):
        if name not in renamed.values():
            queries[name] = compared([_gone(name, old[name])])
    return DeploymentComparison(gravest(each.verdict for each in queries.values()), queries)


def _new(name: str, before: str | None) -> Difference:
    if before is not None:
        reason = f"{name} does what {before} did: state and positions go by names, and it would start with nothing"
        return difference("query-renamed", "", reason)
    return difference("query-added", "", f"{name} was not there: no position states where it starts")


def _gone(name: str, plan: QueryPlan) -> Difference:
    if plan.is_stateful:
        return difference(
            "query-dropped", "", f"{name} is not started any more, and what its state holds never comes out"
        )
    reason = f"{name} is not started any more; it held no state"
    return difference("query-dropped", "", reason, verdict="state-compatible")


def _renamed(old: Mapping[str, QueryPlan], new: Mapping[str, QueryPlan]) -> dict[str, str]:
    """New name -> old name, of queries that do the same."""
    gone = sorted(old.keys() - new.keys())
    found: dict[str, str] = {}
    for name in sorted(new.keys() - old.keys()):
        before = next((each for each in gone if does_the_same(old[each], new[name])), None)
        if before is not None:
            found[name] = before
            gone.remove(before)
    return found


def _swapped_with(name: str, old: Mapping[str, QueryPlan], new: Mapping[str, QueryPlan]) -> str | None:
    """The query that has exchanged its work with this one; None if no query has."""
    if does_the_same(old[name], new[name]):
        return None
    others = sorted(old.keys() & new.keys() - {name})
    return next(
        (each for each in others if does_the_same(old[each], new[name]) and does_the_same(old[name], new[each])), None
    )


def does_the_same(old: QueryPlan, new: QueryPlan) -> bool:
    """Whether two plans are of one query, whatever its name and sink."""
    if old.reading != new.reading or old.nodes != new.nodes:
        return False
    return [each.identity for each in old.sources] == [each.identity for each in new.sources]


# State that moves from one line of Spark to another: which moves were tried, by operator and state store.
#
# ``spark_moves.json`` has the streams that were moved, as ``docs/compatibility.py`` writes it from what was run.

MOVED_STREAMS = "spark_moves.json"
State = tuple[str, ...]
"""What distinguishes the state of an operator: its kind, then its traits, sorted."""
Fate = Literal["exact", "refused", "not tried", "not there"]
STORES = {"rocksdb": ROCKSDB_PROVIDER, "hdfs": HDFS_BACKED_PROVIDER}
_OLDER_LISTS = ", older lists"
ACCEPTS_NULL = "a schema of its state that accepts null, which each start writes"
"""What some joins of Spark 3.5 need on Spark 4 (``checkpoint.state_files.accept_nulls``)."""
_NOT_NULL = frozenset({"Inner", "RightOuter", "LeftSemi"})
"""Joins in whose state Spark 3.5 was seen to record columns that a filter makes not null."""
_FIRST_4: Line = (4, 0)
SINCE: Mapping[str, Line] = {"transform_with_state": _FIRST_4}
"""The first line of Spark that has a kind of operator, where that is not the first of all."""
_STORE_WORDS = {
    "rocksdb": "RocksDB",
    "hdfs": "the HDFS-backed store",
    "format 2": "in checkpoint format 2",
    "changelog": "with changelogs",
    "offset log 2": "with offset log 2",
    "older lists": "",  # decides on moves back alone
}
KINDS = {
    "aggregate": "aggregates",
    "session_window": "session windows",
    "deduplicate": "dropDuplicates",
    "deduplicate_within_watermark": "dropDuplicatesWithinWatermark",
    "stream_join": "joins",
    "transform_with_state": "transformWithState",
    "apply_in_pandas_with_state": "applyInPandasWithState",
    "flat_map_groups_with_state": "flatMapGroupsWithState",
    "global_limit": "limits",
}
_FIRST = {
    "window": "windowed",
    "Inner": "inner",
    "LeftOuter": "left outer",
    "RightOuter": "right outer",
    "FullOuter": "full outer",
    "LeftSemi": "left semi",
}
"""Traits that are named before the kind."""
_THEN = {
    "value": "values",
    "list": "lists",
    "map": "maps",
    "unknown": "unknown variables",
    "ttl": "time to live",
    "EventTime": "event-time timers",
    "ProcessingTime": "processing-time timers",
    "EventTimeTimeout": "event-time timeouts",
    "ProcessingTimeTimeout": "processing-time timeouts",
    "NoTimeout": "no timeouts",
    "unwindowed": "no window",
    "initial": "initial state",
    "keys": f"more than {MOST_IN_ORDER} columns",
    "chain": "another operator above or below",
}
"""Traits that are named after it."""


@dataclass(frozen=True)
class Moved:
    """A stream that was moved.

    Attributes:
        store: its state store and formats: ``rocksdb``, ``rocksdb, changelog``.
        settings: what was set on both Sparks.
        states: of its operators.
        exact: the moves that lost nothing: from which line of Spark to which.
    """

    store: str
    settings: Mapping[str, str]
    states: tuple[State, ...]
    exact: frozenset[tuple[Line, Line]]


def moved_streams(raw: Iterable[Mapping[str, Any]] | None = None) -> list[Moved]:
    """The streams that were moved: of the file, or of what ``raw`` has in its place."""
    if raw is None:
        text = importlib.resources.files("airflow_streamstate.plan").joinpath(MOVED_STREAMS).read_text(encoding="utf-8")
        raw = json.loads(text)
    return [
        Moved(
            one["store"],
            one["settings"],
            tuple(tuple(state.split()) for state in one["states"]),
            frozenset(_move(words) for words in one["exact"]),
        )
        for one in raw or ()
    ]


def _move(words: str) -> tuple[Line, Line]:
    before, now = (line_of(word) for word in words.split(" to "))
    if before is None or now is None:
        raise ValueError(words)
    return before, now


def fate_of(
    state: State, store: str, before: Line, now: Line, moved: Collection[Moved]
) -> tuple[Fate, tuple[str, ...]]:
    """What becomes of the state of an operator, and with what, or why not.

    Args:
        store: as ``Moved.store``; in place of a known state store a class and its forms (``guards.state_store_of``).
    """
    if min(before, now) < SINCE.get(state[0], (0, 0)):
        return "not there", ()
    provider, offset_log = store.partition(", ")[0], "v2" if "offset log 2" in store else "v1"
    pinned = OLDER_LISTS if _OLDER_LISTS in store else STORES.get(provider, provider)
    reason = why_not(as_text(before), as_text(now), pinned, offset_log)
    if reason is not None:
        return "refused", (reason,)
    stores = {store, store.replace(_OLDER_LISTS, "")}  # what goes with any lists goes with older ones
    found = [one for one in moved if one.store in stores and (before, now) in one.exact and has_state(one, state)]
    if not found:
        return "not tried", ()
    settings = min((one.settings for one in found), key=len)
    is_between_3_and_4 = min(before, now) < _FIRST_4 <= max(before, now)
    needs = [f"{name}={value}" for name, value in settings.items() if is_between_3_and_4]
    if state[0] == "stream_join" and _NOT_NULL.intersection(state) and before < _FIRST_4 <= now:
        needs.append(ACCEPTS_NULL)
    return "exact", tuple(needs)


def has_state(moved: Moved, state: State) -> bool:
    """Whether an operator of a stream has this state, or more of the same kind."""
    return any(state[0] == each[0] and set(state) <= set(each) for each in moved.states)


def as_text(line: Line) -> str:
    """A line of Spark: ``4.2``."""
    return f"{line[0]}.{line[1]}"


def states_of(plan: QueryPlan) -> list[State]:
    """The state of each operator of a plan."""
    above = {each.operator_id for each in plan.operators if any(one.operators for one in each.inputs)}
    below = {number for each in plan.operators for one in each.inputs for number in one.operators}
    return [
        (each.kind, *sorted({*_traits(each), *(("chain",) if each.operator_id in above | below else ())}))
        for each in plan.operators
    ]


def _traits(operator: StateOperator) -> Iterator[str]:
    if operator.kind == "aggregate":
        yield "window" if operator.windows else "unwindowed"
    yield from filter(None, (operator.join_type, operator.timeout))
    if operator.kind in DEDUPLICATIONS and len(operator.keys) > MOST_IN_ORDER:
        yield "keys"
    if operator.has_initial_state:
        yield "initial"
    if operator.kind != "transform_with_state":
        return
    if operator.time_mode in _THEN:
        yield operator.time_mode
    if operator.variables is None:
        yield "unknown"
    for variable in operator.variables or ():
        if variable.kind != "timer":  # those of its time mode
            yield variable.kind
        if variable.has_ttl:
            yield "ttl"


def state_words(state: State) -> str:
    """A state as text, in the plural: ``windowed aggregates``."""
    first = [words for trait, words in _FIRST.items() if trait in state]
    then = [words for trait, words in _THEN.items() if trait in state]
    whole = " ".join((*first, KINDS.get(state[0], state[0])))
    return f"{whole} ({', '.join(then)})" if then else whole


def store_words(store: str) -> str:
    """A state store and its formats as text: ``RocksDB with changelogs``."""
    words = (_STORE_WORDS.get(part, re.sub(r"\S+\.(\w+)", r"\1", part, count=1)) for part in store.split(", "))
    return " ".join(filter(None, words))


@dataclass(frozen=True)
class Kept:
    """A query whose state moves.

    Attributes:
        plan: as recorded on the old Spark.
        entry: of the offset log, whose state it is; None where it cannot be read.
        unfit: why the new version does not continue with the state; "" where it does.
    """

    plan: QueryPlan
    entry: OffsetEntry | None = None
    unfit: str = ""

    @property
    def store(self) -> str:
        """As ``Moved.store``."""
        layout = self.plan.state
        provider = state_store_of(self.entry, has_state=True) or pinned_store(self.plan.pinned) or layout.provider
        names = {value: name for name, value in STORES.items()} | {OLDER_LISTS: f"rocksdb{_OLDER_LISTS}"}
        parts = [names.get(provider, provider)]
        parts += [f"format {layout.checkpoint_format}"] if layout.checkpoint_format != 1 else []
        parts += ["changelog"] if layout.changelog else []
        parts += ["offset log 2"] if offset_log_of(self.entry) == "v2" else []
        return ", ".join(parts)


def notes_of_state(kept: Mapping[str, Kept], runs_on: str) -> tuple[str, ...]:
    """A sentence for each kind of state that moves to another line of Spark: whether this move was tried.

    Args:
        kept: by query.
        runs_on: the version of the Spark that is to continue.
    """
    moved = moved_streams()
    found: dict[str, list[str]] = {}
    for name, one in kept.items():
        before, now = line_of(one.plan.spark_version), line_of(runs_on)
        if before is None or now is None or before == now:
            continue
        for state in dict.fromkeys(states_of(one.plan)):
            words = f"state of {state_words(state)} in {store_words(one.store)}"
            way = f"from Spark {as_text(before)} to {as_text(now)}"
            found.setdefault(f"{words}, {way}: {_told(one, state, before, now, moved)}", []).append(name)
    return tuple(
        f"{'query' if len(names) == 1 else 'queries'} {', '.join(names)}: {text}" for text, names in found.items()
    )


def _told(kept: Kept, state: State, before: Line, now: Line, moved: Collection[Moved]) -> str:
    fate, why = fate_of(state, kept.store, before, now, moved)
    if fate == "refused":
        return f"refused, {why[0]}"
    if fate == "not there":
        return f"refused, Spark {as_text(now)} does not have it"
    if kept.unfit:
        return f"does not fit ({kept.unfit})"
    if fate == "not tried":
        return fate
    has = {f"{name}={value}" for name, value in kept.plan.settings.items()}
    needs = [one for one in why if one not in has]
    return f"tried, exact with {' and '.join(needs)}" if needs else "tried, exact"
