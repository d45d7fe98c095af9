"""What ``diff`` reports that ``apply`` would do, by the state of the stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from airflow_streamstate.declarations.diff import StreamDifference, compare
from airflow_streamstate.declarations.reader import read_streams
from support.sim_stage import STREAM, Stage

Life = Callable[[Stage], object]


def compared(stage: Stage, **more: object) -> StreamDifference:
    """The stream with its file, whose script is the deployed one unless the file names another."""
    path = stage.folder / f"{STREAM}.yaml"
    values = {"id": STREAM, "application": str(stage.script()), **more}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    (declared,) = read_streams([path]).streams
    return compare(stage.controller, declared)


def lives(stage: Stage) -> None:
    stage.come_to_life(queries=("counts",))
    stage.beat()


def is_silent(stage: Stage) -> None:
    lives(stage)
    stage.clock.advance(3_600)


def is_lost(stage: Stage) -> None:
    is_silent(stage)
    stage.end(state="unknown")


def is_retired(stage: Stage) -> None:
    stage.stopped()
    stage.controller.retention.retire(STREAM)


@pytest.mark.parametrize(
    ("life", "step", "says"),
    [
        (is_retired, "refused", "the stream is retired"),
        (is_lost, "refused", "its driver is lost"),
        (is_silent, "refused", "`streamstate kill orders` ends it"),
        (Stage.stopped, "resume", "it is stopped"),
    ],
)
def test_a_file_starts_nothing_beside_a_driver_that_may_live(tmp_path: Path, life: Life, step: str, says: str) -> None:
    """Nor a stream that a person retired. (Laws 2 and 4)"""
    stage = Stage(tmp_path)
    stage.deploy()
    life(stage)
    found = compared(stage)
    assert found.step == step
    assert says in found.reason
    other = stage.folder / "other.py"
    other.write_text("print('v2')\n")
    changed = compared(stage, application=str(other))
    assert changed.step == ("deploy" if step == "resume" else "refused")
    assert says in changed.reason
