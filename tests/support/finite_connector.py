"""A connector of simulated sources that come to an end, found by its entry point."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.connectors.registry import SOURCES
from support.simulated_connector import SimulatedConnector, _index

ENDS_AT = 40
"""How many rows an offset covers when its source is finished."""
PARTS = 6


class FiniteConnector(SimulatedConnector):
    name = "finite"

    def finished_parts(self, offset: str) -> int | None:
        return PARTS if _index(offset) >= ENDS_AT else None


def install_finite(folder: Path) -> None:
    """Make a folder of the path one in which the connector is installed."""
    metadata = folder / "finite_sources-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: finite-sources\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{SOURCES}]\nfinite = {__name__}:FiniteConnector\n")
