"""Three words for times, each with one meaning: timeout, deadline, expires in (docs/reference/shell.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "airflow_streamstate"
FORBIDDEN = ("begin_within_seconds", "wait_seconds", "wait", "wait_for")
"""Names that these three words took the place of, in what users call from Python."""
DEADLINES = {
    # where: what must be done by then
    "protocol/terms/order.py": "the stop, the rehearsal of a plan, the reading of state",
    "controller/commands/forced_stop.py": "the stop",
    "controller/adopt/adoptions.py": "the barrier of a foreign query",
    "controller/adopt/foreign.py": "the same",
    "controller/scratch/rehearsal.py": "the rehearsal",
    "controller/scratch/replays.py": "the replay",
    "controller/scratch/run.py": "any scratch run",
    "operators/stop.py": "the stop",
    "operators/plan.py": "the rehearsal",
    "operators/snapshot.py": "the reading of state",
    "cli/start.py": "the barrier of a foreign query",
    "cli/replay.py": "the replay",
}
"""Every place in which something must be done by a deadline; nothing else has an argument of that name."""


def arguments(path: Path) -> set[str]:
    """The names of all parameters, and fields with a type, in a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            found |= {each.arg for each in every if each.annotation is not None}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def files(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (PACKAGE / room).rglob("*.py"))


@pytest.mark.parametrize(
    "path", files("cli", "controller", "hooks", "operators", "protocol/terms", "sensors"), ids=lambda path: path.stem
)
def test_a_time_is_called_by_what_it_means(path: Path) -> None:
    """A wait takes a timeout, an order expires, and something must be done by a deadline."""
    found = arguments(path)
    assert not found & set(FORBIDDEN)
    if "deadline_seconds" in found:
        assert str(path.relative_to(PACKAGE)) in DEADLINES


def test_every_named_deadline_exists() -> None:
    """The table above is about what is there."""
    assert [name for name in DEADLINES if "deadline_seconds" not in arguments(PACKAGE / name)] == []


def test_waits_and_orders_take_the_words_that_they_mean() -> None:
    """The client does, and so do the operators that order."""
    assert {"timeout_seconds", "expires_in_seconds"} <= arguments(PACKAGE / "controller/client.py")
    for name in ("stop", "snapshot"):
        assert "expires_in_seconds" in arguments(PACKAGE / f"operators/{name}.py")
    assert "timeout_seconds" in arguments(PACKAGE / "operators/base.py")
