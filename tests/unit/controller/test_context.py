"""How a register is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.errors import VersionConflictError
from support.sim_stage import Stage


def test_a_register_names_its_writer_and_is_written_once(stage: Stage) -> None:
    """Each write has its own id; a controller that read an older register loses. (Laws 4 and 8)"""
    stage.deploy()
    context = ControllerContext.of(stage.home, stage.launcher, stage.clock, "ada", None)
    before = stage.control.need_register()
    after = context.update_register(stage.control, lambda now: replace(now, attempt=2), since=before)
    assert (after.value.attempt, after.value.updated_by) == (2, "ada")
    assert after.value.write_id != before.value.write_id
    with pytest.raises(VersionConflictError):
        context.update_register(stage.control, lambda now: replace(now, attempt=3), since=before)
