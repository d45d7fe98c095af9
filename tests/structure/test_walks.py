"""How many files a reader visits to follow a verb: counted by running it in the simulator."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import airflow_streamstate
from support import trace_stage
from support.net import LIVES
from support.trace_stage import traced

PACKAGE = Path(airflow_streamstate.__file__).parent
ROOMS = ("cli", "controller")
"""Those of whoever orders; what the driver does is a separate walk, and records and stores are below both."""


@pytest.mark.parametrize(
    ("life", "verb", "most"),
    [
        ("upgraded_cold", ("upgrade",), 45),
        ("drained_and_continued", ("drain",), 28),
        ("snapshots_are_kept_and_pruned", ("snapshot", "create"), 30),
    ],
)
def test_a_verb_is_followed_through_few_files(
    life: str, verb: tuple[str, ...], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command to the end of the wait, in the shell and the controller."""
    visited: set[str] = set()
    typed: Callable[..., Any] = trace_stage.Stage.shell

    def see(frame: FrameType, event: str, _value: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            visited.add(frame.f_code.co_filename)

    def followed(stage: object, *words: str, **named: Any) -> Any:
        if words[: len(verb)] != verb:
            return typed(stage, *words, **named)
        sys.setprofile(see)
        threading.setprofile(see)
        try:
            return typed(stage, *words, **named)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    monkeypatch.setattr(trace_stage.Stage, "shell", followed)
    traced(LIVES[life], tmp_path)
    tops = tuple(f"{PACKAGE / room}/" for room in ROOMS)
    found = sorted(path for path in visited if path.startswith(tops))
    assert 10 < len(found) <= most, found
