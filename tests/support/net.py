"""The net under a refactoring: what is recorded, and where."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from support import trace_lives_keeping, trace_lives_upgrades
from support.trace_lives import LIVES
from support.trace_stage import traced

GOLDEN = Path(__file__).parents[1] / "golden"
TRACES = GOLDEN / "traces"
SURFACES = GOLDEN / "surfaces.txt"
NAMED_IN = (trace_lives_upgrades, trace_lives_keeping)
"""Their lives are in ``LIVES`` once they are imported."""
__all__ = ["LIVES", "SURFACES", "recorded_traces", "trace_path", "trace_text", "typed_in"]


def trace_path(name: str) -> Path:
    """Where the trace of a life is recorded."""
    return TRACES / f"{name}.txt"


def recorded_traces() -> list[Path]:
    """All that are recorded."""
    return sorted(TRACES.glob("*.txt"))


def trace_text(name: str) -> str:
    """The trace of a life, by the code of now."""
    return _lived(name)[0]


def typed_in(name: str) -> frozenset[str]:
    """The verbs that are typed in a life."""
    return _lived(name)[1]


@functools.cache
def _lived(name: str) -> tuple[str, frozenset[str]]:
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        text, verbs = traced(LIVES[name], Path(folder))
    return text, frozenset(verbs)
