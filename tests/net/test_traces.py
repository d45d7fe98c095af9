"""The traces of whole lives are as they were recorded: a refactoring changes no write and no launch.

``python tests/net/record.py`` records them again, where a change of them is meant.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.net import LIVES, recorded_traces, trace_path, trace_text, typed_in
from support.shell import VERBS

ROOT = Path(__file__).parents[2]
RECORD = "`python tests/net/record.py` records it, if the change is meant"
READS = {
    "list": "reads the home",
    "status": "reads the home",
    "events": "reads the home",
    "logs": "reads the log of a driver",
    "home doctor": "looks at this machine, and leaves nothing",
}
"""Verbs that no life has to type, each with the reason."""
MOST_LINES = 60


@pytest.mark.parametrize("name", LIVES)
def test_a_life_writes_and_launches_as_recorded(name: str) -> None:
    """Each write with its key and body, each launch with its request, in their order, byte for byte."""
    path, now = trace_path(name), trace_text(name)
    assert path.exists(), f"{path.name} was never recorded; {RECORD}"
    before = path.read_text(encoding="utf-8")
    if before != now:
        lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=2))
        shown = "\n".join(line[:300] for line in lines[:MOST_LINES])
        pytest.fail(f"the trace of {name} has changed; {RECORD}:\n{shown}", pytrace=False)


def test_each_trace_is_of_a_life() -> None:
    """None is left of a life that is not lived any more."""
    assert [path.stem for path in recorded_traces()] == sorted(LIVES)


def test_each_verb_is_typed_in_a_life() -> None:
    """Or it is named as one that writes nothing."""
    typed = frozenset().union(*(typed_in(name) for name in LIVES))
    assert set(VERBS) - typed - set(READS) == set()
    assert typed & set(READS) == set(), "a life types it: leave it out of READS"


def test_a_trace_is_the_same_in_another_process() -> None:
    """With another seed for hashes, in another folder."""
    name = next(iter(LIVES))
    script = f"from support.net import trace_text; print(trace_text({name!r}), end='')"
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)])
    environ = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout == trace_text(name)
