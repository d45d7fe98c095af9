"""What changes of sources, and of the watermarks over them, do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.differences import Difference, Verdict
from airflow_streamstate.plan.matching import Pairs, is_reordered
from airflow_streamstate.plan.model import PlannedSource, QueryPlan
from airflow_streamstate.plan.options import PACE_OPTIONS
from airflow_streamstate.protocol.positions import WatermarkSpec

STARTS = frozenset(
    {"startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp", "startingversion"}
    | {"starttimestamp", "stream-from-timestamp"}
)
"""Options that say where a source begins: Spark reads them only for a query without a checkpoint."""
PACES = PACE_OPTIONS | {"rowspersecond", "rowsperbatch", "rampuptime", "latestfirst", "maxfileage", "cleansource"}
PACES |= {"kafka.bootstrap.servers", "advancemillisperbatch"}
"""Options that say how much is read at once, when, or how, but not what."""


def source_differences(old: QueryPlan, new: QueryPlan, pairs: Pairs) -> Iterator[Difference]:
    """Sources that are new, gone, at another place, or read differently."""
    kept = set(pairs.values())
    gone = [position for position in range(len(old.sources)) if position not in kept]
    come = [position for position in range(len(new.sources)) if position not in pairs]
    for was, now in zip(gone, come, strict=False):
        source = new.sources[now]
        reason = (
            f"{_named(old.sources[was])} became {_named(source)}: positions of the one say nothing of the other, and"
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
        yield difference("source-renamed", new.path, f"{reason}: Spark finds offsets by names, and would read it anew")
    verdict: Verdict = "needs-drain" if is_stateful else "state-compatible"
    if old.format != new.format:
        reason = f"{new.identity} was read as {old.format}, and is read as {new.format}"
        yield difference("source-format-changed", new.path, reason, verdict=verdict)
    yield from _options(old, new, verdict)
    before, now = ({column.text: column.type for column in each.columns} for each in (old, new))
    if before != now:
        words = _columns(before, now)
        yield difference("source-columns-changed", new.path, f"{_named(new)}: {words}, for what is read from here on")


def _options(old: PlannedSource, new: PlannedSource, verdict: Verdict) -> Iterator[Difference]:
    for name in sorted(old.options.keys() | new.options.keys()):
        was, now = old.options.get(name), new.options.get(name)
        if was == now:
            continue
        words = f"{_named(new)}: {name} was {_value(was)} and is {_value(now)}"
        if name in STARTS:
            yield difference("source-start-changed", new.path, f"{words}: the checkpoint says where it goes on")
        elif name in PACES:
            yield difference("source-pace-changed", new.path, f"{words}: batches are cut differently")
        else:
            yield difference("source-reading-changed", new.path, words, verdict=verdict)


def _columns(before: Mapping[str, str], now: Mapping[str, str]) -> str:
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
    for was, is_now in zip(list(gone), list(come), strict=False):
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
