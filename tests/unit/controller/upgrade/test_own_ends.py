"""Versions that come to the end of their input while an upgrade is under way: that is success, and no failure."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.upgrade.forward import CAME_TO_ITS_END
from airflow_streamstate.protocol.events import Drained, Finished
from support.upgrade_stage import UpgradeStage

SELF_DRAINED = "self-drained: all 7 parts finished"


def drains_itself(upgraded: UpgradeStage, deployment_id: str) -> None:
    """All its sources are read to their end, and every window is flushed."""
    stage = upgraded.stage
    stage.flush(deployment_id=deployment_id)
    manifest = stage.keep("drained", deployment_id, 1, state_rows_left=0)
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(
        Drained, deployment_id, snapshot_id=manifest.snapshot_id, queries=positions, command_id="own",
        command_number=1, reason=SELF_DRAINED,
    )  # fmt: skip
    stage.end(deployment_id)


def finishes(upgraded: UpgradeStage, deployment_id: str) -> None:
    """Its trigger has ended its run."""
    stage = upgraded.stage
    manifest = stage.keep("stopped", deployment_id)
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Finished, deployment_id, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.end(deployment_id)


@pytest.mark.parametrize("ends", [drains_itself, finishes])
def test_a_new_version_that_comes_to_the_end_of_its_input_is_upgraded(upgraded: UpgradeStage, ends: object) -> None:
    """Before it has committed as many batches as were wanted; nothing is brought back."""
    view = upgraded.to_started()
    upgraded.new_runs(4)
    ends(upgraded, "d-0002")  # type: ignore[operator]
    view = upgraded.advance(view)
    assert (view.outcome, view.state.text, view.as_error()) == ("upgraded", CAME_TO_ITS_END, None)
    assert upgraded.held_by() is None
    assert upgraded.stage.control.need_register().value.deployment_id == "d-0002"


def test_a_new_version_whose_script_merely_ends_is_given_up(upgraded: UpgradeStage) -> None:
    """It has read a part of its input, whatever it had committed."""
    view = upgraded.to_started()
    upgraded.new_runs(4)
    stage = upgraded.stage
    manifest = stage.keep("stopped", "d-0002")
    stage.say(
        Finished, "d-0002", snapshot_id=manifest.snapshot_id, queries={},
        unfinished={"counts": "ran when the script ended"},
    )  # fmt: skip
    stage.end("d-0002")
    view = upgraded.advance(view)
    assert view.outcome is None
    assert any("query counts ran when the script ended" in text for text in upgraded.texts(view))


@pytest.mark.parametrize("partitions", [None, 7])
def test_an_old_version_that_drains_itself_before_its_stop_is_followed_by_the_new_one(
    upgraded: UpgradeStage, partitions: int | None
) -> None:
    """From its positions; there is no state left to rewrite, and the new version keeps its settings."""
    view = upgraded.begin(change={} if partitions is None else {"partitions": partitions})
    upgraded.advance(view)
    drains_itself(upgraded, "d-0001")
    view = upgraded.rehearsed(view)
    assert view.state.phase == "started", view.state.text
    start = upgraded.stage.spec("d-0002").start
    assert (start.mode, start.rewrite) == ("seed", None)
    upgraded.new_runs(5)
    drains_itself(upgraded, "d-0002")
    view = upgraded.advance(view)
    assert (view.outcome, view.state.text) == ("upgraded", CAME_TO_ITS_END)


def test_an_old_version_that_is_back_and_drains_itself_is_back(upgraded: UpgradeStage) -> None:
    """The new one was abandoned for a failure."""
    view = upgraded.to_started()
    upgraded.fails()
    view = upgraded.advance(view)
    upgraded.new_runs(4, "d-0003")
    drains_itself(upgraded, "d-0003")
    view = upgraded.advance(view)
    assert (view.outcome, view.is_back) == ("given_up", True)
