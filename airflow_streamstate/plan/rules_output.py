"""What it does that results are made, written or timed otherwise than before."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.differences import Difference
from airflow_streamstate.plan.model import PlannedSink, QueryPlan
from airflow_streamstate.plan.segments import Stretches, changes

SKIPPING = frozenset({"batch_id", "query_id_and_batch_id"})
"""Sinks that leave out a batch whose id they hold."""
NO_BARRIER = frozenset({"continuous", "real_time"})


def output_differences(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    """Trigger, output mode, and the sink."""
    if old.trigger != new.trigger:
        words = f"the trigger {old.trigger} became {new.trigger}"
        if new.trigger in NO_BARRIER:
            yield difference("trigger-unsupported", "", f"{words}, which knows no barrier")
        else:
            yield difference("trigger-changed", "", words)
    yield from _mode(old, new)
    yield from _sink(old.sink, new.sink)


def result_differences(before: Stretches, now: Stretches) -> Iterator[Difference]:
    """What is done otherwise above all operators with state, of two plans that were cut there."""
    for kind, words in changes(before.output, now.output):
        yield difference("output-changed", kind, f"above all state: {words}")


def column_differences(old: QueryPlan, new: QueryPlan) -> Iterator[Difference]:
    """Columns that are written, by names and types."""
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
    before, now = f"{old.kind} {old.target}".strip(), f"{new.kind} {new.target}".strip()
    if (old.kind.partition(":")[0], old.target) != (new.kind.partition(":")[0], new.target):
        if new.skips in SKIPPING:
            how = "whatever query it comes from" if new.skips == "batch_id" else "of this query"
            reason = f"{before} became {now}, which leaves out a batch whose id it holds, {how}"
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
