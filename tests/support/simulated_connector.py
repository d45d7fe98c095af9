"""A source connector of a different package, found by its entry point, for simulated sources."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_streamstate.connectors.registry import SOURCES
from airflow_streamstate.connectors.source import NO_OFFSET, Lag, LostInput, OffsetOrder, Preflight, Source

if TYPE_CHECKING:
    from support.simulated_sources import SimulatedSource

BROKEN = "broken"
"""A source of this name: its connector fails at every question."""


ONCE = "once"
"""A source with this in its name sends each row once."""


@dataclass(frozen=True)
class SimulatedDoor:
    """What the connector is handed; there is no JVM behind it."""

    sources: Mapping[str, SimulatedSource]

    @property
    def jvm(self) -> Any:
        """None is needed."""
        return None

    @property
    def session(self) -> Any:
        """Neither is this."""
        return None


class SimulatedConnector:
    """Knows sources of format ``simulated`` by their names."""

    name = "simulated"

    def identify(self, source: Source) -> str | None:
        return f"simulated {source.options['name']}" if source.format == "simulated" else None

    def continues(self, source: Source, offset: str) -> bool:
        return source.options["name"].endswith("and-more")

    def compare(self, first: str, second: str) -> OffsetOrder:
        return "apart"

    def between(self, first: str, second: str) -> Lag | None:
        return Lag(max(0, _index(second) - _index(first)))

    def part_way(self, first: str, second: str, share: float) -> str:
        one, other = _index(first), _index(second)
        return _line(one + math.ceil((other - one) * share))

    def open(self, source: Source, spark: SimulatedDoor) -> OpenSimulated:
        return OpenSimulated(source.options["name"], spark.sources[source.options["name"]])

    def remarks(self, source: Source) -> tuple[str, ...]:
        return ("its connector has a remark",) if "remarkable" in source.options["name"] else ()

    def passes_over_lost(self, source: Source) -> bool:
        return "passing-over" in source.options["name"]

    def explain(self, failure: str) -> str | None:
        return "the simulated batch failed as ordered; run it again" if "by zero" in failure else None


class OpenSimulated:
    """Asks the source itself."""

    def __init__(self, name: str, source: SimulatedSource) -> None:
        self._name = name
        self._source = source

    def _ask(self) -> SimulatedSource:
        if BROKEN in self._name:
            raise RuntimeError("it does not answer")
        return self._source

    def marks(self) -> Mapping[str, str]:
        return {"made": self._ask().made}

    def lag(self, offset: str) -> Lag | None:
        return Lag(len(self._ask().rows) - _index(offset))

    def commit_to_group(self, group: str, offset: str) -> None:
        self._ask().groups.append((group, _index(offset)))

    def preflight(self, offset: str, marks: Mapping[str, str]) -> Preflight:
        source, at = self._ask(), _index(offset)
        if source.silent_after is not None:
            source.silent_after -= 1
            if source.silent_after < 0:
                raise TimeoutError("it does not answer any more")
        if ONCE in self._name and at:
            return Preflight((LostInput(self._name, "sent_once"),), NO_OFFSET)
        if source.unseen:
            source.unseen -= 1
            return Preflight((LostInput(self._name, "gone"),), _line(0))
        if marks.get("made", source.made) != source.made:
            return Preflight((LostInput(self._name, "remade"),), _line(0))
        if at < source.removed_below:
            lost = LostInput(self._name, "removed", source.removed_below - at)
            return Preflight((lost,), _line(source.removed_below))
        return Preflight((), offset)

    def close(self) -> None:
        return


def _index(offset: str) -> int:
    return 0 if offset == "-" else int(json.loads(offset)["index"])


def _line(index: int) -> str:
    return json.dumps({"index": index}, separators=(",", ":"))


def install_connector(folder: Path) -> None:
    """Make a folder of the path one in which the connector is installed."""
    metadata = folder / "simulated_sources-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated-sources\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{SOURCES}]\nsimulated = {__name__}:SimulatedConnector\n")
