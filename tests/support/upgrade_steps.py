"""Where an upgrade is, by its facts alone: what its steps would sum up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_streamstate.control.upgrade_journal import UpgradeState, state_of
from airflow_streamstate.protocol.upgrades import Phase, Upgrade, UpgradePlan, UpgradeStep
from support.examples import AT

_OF_PLAN = ("verdict", "report")
_OF_RESULT = ("audit_ok", "warnings", "stream_state")


def state_with(upgrade: Upgrade, phase: Phase, text: str = "", **facts: Any) -> UpgradeState:
    """An upgrade in this phase with these facts; those of its plan and of its result by their own names."""
    step = UpgradeStep(upgrade.stream_id, upgrade.upgrade_id, 1, phase, AT, "tests", "w-1", text)
    plan = {name: facts.pop(name) for name in _OF_PLAN if name in facts}
    result = {name: facts.pop(name) for name in _OF_RESULT if name in facts}
    state = replace(state_of(upgrade, [step]), **facts)
    if plan:
        state = replace(state, plan=UpgradePlan(**{"verdict": None, "report": {}, **plan}))
    return replace(state, result=replace(state.result_so_far, **result)) if result else state
