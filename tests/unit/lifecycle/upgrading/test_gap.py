"""The gap of an upgrade, by when commits were written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow_streamstate.lifecycle.upgrading.gap import gap_seconds
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.interface import ObjectInfo
from airflow_streamstate.store.memory import MemoryStore
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage


def test_without_a_store_that_knows_the_agents_are_asked(upgraded: UpgradeStage) -> None:
    """From the last sign of life of the old version to that of the new one; None where one gave none."""
    stage = upgraded.stage
    upgraded.beats(3, "d-0001")
    last_at = stage.clock.now()
    upgraded.to_started()
    stage.clock.advance(2.0)
    old = stage.controller._observer.observe(STREAM, "d-0001")
    handover = stage.control.need_manifest("d-0001-stopped-000001")
    new = stage.controller._observer.observe(STREAM, "d-0002")
    assert gap_seconds(stage.home, old, new, handover) is None
    upgraded.new_runs(4)
    new = stage.controller._observer.observe(STREAM, "d-0002")
    expected = (stage.clock.now() - last_at).total_seconds()
    assert gap_seconds(stage.home, old, new, handover) == round(expected, 3)
    assert expected > 0
    assert gap_seconds(stage.home, old, new, None) is None


class DatedStore(MemoryStore):
    """Knows when some of its objects came to be."""

    def __init__(self) -> None:
        super().__init__()
        self.written_at: dict[str, datetime] = {}

    def head(self, key: str) -> ObjectInfo | None:
        found = super().head(key)
        return None if found is None else replace(found, modified_at=self.written_at.get(key))


def test_a_store_that_knows_is_believed(tmp_path: Path) -> None:
    """Whatever the agents saw: the first commit behind the handover counts, not the last."""
    store = DatedStore()
    upgraded = UpgradeStage(Stage(tmp_path, store=store)).runs()
    stage = upgraded.stage
    upgraded.to_started()
    upgraded.new_runs(6)
    for deployment_id, batch_id, second in (("d-0001", 3, 10.0), ("d-0002", 4, 11.5), ("d-0002", 6, 20.0)):
        key = f"{layout.checkpoint_folder(STREAM, deployment_id, 'counts')}/commits/{batch_id}"
        store.written_at[key] = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=second)
    old, new = (stage.controller._observer.observe(STREAM, known) for known in ("d-0001", "d-0002"))
    handover = stage.control.need_manifest("d-0001-stopped-000001")
    assert gap_seconds(stage.home, old, new, handover) == 1.5
