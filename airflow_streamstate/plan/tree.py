"""A plan as a tree of text, for people."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_streamstate.plan.model import (
    PlannedSink,
    PlannedSource,
    QueryPlan,
    StateOperator,
    StateVariable,
    Window,
)

_LONGEST_LINE = 160
_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


def plan_tree_text(plan: QueryPlan) -> str:
    """The sink first, then each node below what it feeds; stateful operators and sources with their numbers."""
    state = plan.state
    lines = [
        f"{plan.query_name}: {plan.output_mode}, {plan.trigger}, Spark {plan.spark_version}",
        f"to {_sink(plan.sink)}",
    ]
    if plan.operators:
        lines.append(
            f"state: {_count(state.partitions, 'partition')}, {state.provider.rpartition('.')[2]}, checkpoint format"
            f" {state.checkpoint_format}{', changelogs' if state.changelog else ''}"
        )
    for node in plan.nodes:
        indent = "  " * node.depth
        mark = "" if node.operator_id is None else f"  [state {node.operator_id}]"
        if node.source is not None and node.source < len(plan.sources):
            lines.append(f"{indent}source {node.source}: {_source(plan.sources[node.source])}")
            continue
        lines.append(_cut(f"{indent}{node.kind} {node.text}".rstrip()) + mark)
        if node.operator_id is not None and node.operator_id < len(plan.operators):
            lines += [_cut(f"{indent}  · {fact}") for fact in _facts(plan.operators[node.operator_id])]
    return "\n".join(lines)


def duration_text(milliseconds: int) -> str:
    """``5 minutes`` for 300000: in the largest unit of which it is a whole number."""
    for unit, length_ms in _UNITS:
        if milliseconds and milliseconds % length_ms == 0:
            return _count(milliseconds // length_ms, unit)
    return f"{milliseconds} ms"


def window_words(window: Window) -> str:
    if window.kind == "session":
        gap = window.gap if window.duration_ms is None else duration_text(window.duration_ms)
        return f"session over {window.column}, gap {gap}"
    words = [f"{window.kind} over {window.column}"]
    if window.duration_ms is not None:
        words.append(duration_text(window.duration_ms))
    if window.kind == "sliding" and window.slide_ms is not None:
        words.append(f"every {duration_text(window.slide_ms)}")
    if window.offset_ms:
        words.append(f"shifted by {duration_text(window.offset_ms)}")
    return ", ".join(words)


def _facts(operator: StateOperator) -> Iterator[str]:
    if operator.keys:
        yield f"keys: {', '.join(f'{key.text} {key.type}'.strip() for key in operator.keys)}"
    for window in operator.windows:
        yield f"window: {window_words(window)}"
    for name in ("function", "output_mode", "time_mode", "timeout", "state_schema"):
        if getattr(operator, name):
            yield f"{name.replace('_', ' ')}: {getattr(operator, name)}"
    if operator.variables is not None:
        yield f"variables: {', '.join(_variable(each) for each in operator.variables)}"


def _variable(variable: StateVariable) -> str:
    return f"{variable.name} ({variable.kind}{', time to live' if variable.has_ttl else ''})"


def _source(source: PlannedSource) -> str:
    named = f" named {source.name}" if source.name else ""
    options = ", ".join(f"{name}={value}" for name, value in sorted(source.options.items()))
    columns = ", ".join(f"{column.name} {column.type}" for column in source.columns)
    return _cut(f"{source.format} {source.identity}{named} ({columns}){f' {options}' if options else ''}")


def _sink(sink: PlannedSink) -> str:
    parts = [sink.kind, sink.target if sink.target not in sink.kind else ""]
    if sink.partitioned_by:
        parts.append(f"partitioned by {', '.join(sink.partitioned_by)}")
    if sink.skips in ("batch_id", "query_id_and_batch_id"):
        parts.append(f"(skips what it holds, by {sink.skips.replace('_', ' ')})")
    return " ".join(part for part in parts if part)


def _count(number: int, of: str) -> str:
    return f"{number} {of}" if number == 1 else f"{number} {of}s"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 1]}…"
