"""The sources that generate rows as time passes: ``rate`` and ``rate-micro-batch``. They cannot lose input."""

from __future__ import annotations

import json

from airflow_streamstate.connectors.source import NO_OFFSET, Lag, OffsetOrder, Source, SparkDoor, UnaskedSource

_SHAPING = ("rowspersecond", "rowsperbatch", "rampuptime", "numpartitions", "starttimestamp", "advancemillisperbatch")


class RateSource:
    """Spark's ``rate`` and ``rate-micro-batch``."""

    name = "rate"

    def identify(self, source: Source) -> str | None:
        if source.format not in ("rate", "rate-micro-batch"):
            return None
        # An offset is a number of seconds or rows: at another rate it stands for other values.
        shape = [f"{name}={source.options[name]}" for name in _SHAPING if name in source.options]
        return " ".join((source.format, *shape))

    def continues(self, source: Source, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        if first == second:
            return "same"
        return "ahead" if _count(first) > _count(second) else "behind" if _count(first) < _count(second) else "same"

    def between(self, first: str, second: str) -> Lag | None:
        """In rows, for ``rate-micro-batch``; an offset of ``rate`` is a number of seconds, at an unknown rate."""
        if not any(offset.startswith("{") for offset in (first, second)):
            return None
        return Lag(max(0, _count(second) - max(0, _count(first))))

    def open(self, source: Source, spark: SparkDoor) -> UnaskedSource:
        return UnaskedSource("it makes up rows as time passes")

    def remarks(self, source: Source) -> tuple[str, ...]:
        return ()

    def explain(self, failure: str) -> str | None:
        return None


def _count(offset: str) -> int:
    if offset == NO_OFFSET:
        return -1
    value = json.loads(offset)
    if isinstance(value, dict):  # rate-micro-batch
        value = value.get("offset")
    if isinstance(value, int):
        return value
    raise ValueError(f"no offset of a rate source: {offset[:100]}")
