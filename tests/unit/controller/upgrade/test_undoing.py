"""Whether what a version wrote can be undone is reported before anything is touched (Law 14)."""

from __future__ import annotations

import pytest

from airflow_streamstate.connectors.sink import UndoMeans
from airflow_streamstate.controller.upgrade.steps import (
    beginning_id,
    beginning_of,
    has_only_planned,
    has_run_batches,
    refusal_of,
    why_not_undone,
)
from airflow_streamstate.protocol.events import Draining
from support.asked_upgrades import on_return
from support.sim_stage import STREAM
from support.upgrade_stage import FILES, UpgradeStage


@pytest.mark.parametrize(
    ("means", "asked", "expected"),
    [
        ("exact by undo", {}, ""),
        ("by command", {}, "--undo-command"),
        ("by command", {"undo_command": ("undo.sh",)}, ""),
        ("unknown", {}, "--undo-command"),
        ("unknown", {"accept_duplicates": True}, "--undo-command"),
        ("only doubled", {}, "--accept-duplicates"),
        ("only doubled", {"undo_command": ("undo.sh",)}, "--accept-duplicates"),
        ("only doubled", {"accept_duplicates": True}, ""),
    ],
)
def test_what_stands_in_the_way_is_named_with_what_helps(
    upgraded: UpgradeStage, means: UndoMeans, asked: dict[str, object], expected: str
) -> None:
    """One query of several is enough."""
    upgrade = on_return(upgraded.begin().state.upgrade, **asked)
    found = refusal_of(upgrade, {"counts": "exact by undo", "raw": means}, {"counts": "parquet", "raw": "kafka"})
    assert expected in found
    assert bool(found) is bool(expected)
    assert not found or "query raw writes to kafka" in found


def test_it_is_asked_of_the_plans_that_were_recorded(upgraded: UpgradeStage) -> None:
    """Of Kafka nothing is withdrawn; files are."""
    view = upgraded.to_upgraded()
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    assert "cannot be undone" in why_not_undone(tools, state)
    upgraded.sink = FILES
    upgraded.new_runs(7)
    assert why_not_undone(tools, state) == ""


def test_a_version_that_began_with_nothing_has_no_handover(upgraded: UpgradeStage) -> None:
    """So there is no version to go back to."""
    view = upgraded.to_started(mode="fresh")
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    assert "no handover" in why_not_undone(tools, state)


def test_what_cannot_be_read_counts_as_run(upgraded: UpgradeStage) -> None:
    """Law 14: over a log that contradicts itself no version is treated as one that never started."""
    view = upgraded.to_started()
    upgraded.new_runs(3)
    tools, _ = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    seen = upgraded.stage.seen()
    beginning = beginning_of(tools, seen)
    assert beginning is not None
    assert not has_run_batches(tools, seen, beginning)
    assert has_only_planned(tools, seen, beginning)
    checkpoint = upgraded.stage.checkpoint(deployment_id="d-0002")
    checkpoint.store.delete(checkpoint.offset_key(3))
    assert has_run_batches(tools, seen, beginning)
    assert not has_only_planned(tools, seen, beginning)


def test_a_drain_is_undone_to_before_any_query_was_flushed(upgraded: UpgradeStage) -> None:
    """Laws 11 and 16: a query that a snapshot holds as flushed has no state there to continue with."""
    view = upgraded.begin()
    tools, _ = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    stage = upgraded.stage
    whole = stage.keep("pre-drain")
    stage.say(Draining, command_id="c-1", snapshot_id=whole.snapshot_id, flush_batch_ids={"counts": 4})
    stage.flush()
    partly = stage.keep("pre-drain", attempt=2)
    assert partly.queries["counts"].drained
    stage.say(Draining, command_id="c-1", snapshot_id=partly.snapshot_id, flush_batch_ids={"others": 4})
    assert beginning_id(tools, stage.seen()) == whole.snapshot_id
