"""Law 17 refuses no restart of the same script: Spark's ids, its folders and its pace are another in each run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from airflow_streamstate.plan.codes import FITTING, refusing
from airflow_streamstate.plan.comparison import compare, compare_deployments
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.spark_json import read_plan
from support.plan_golden import facts_of, golden, kept, versions
from support.truth_record import recorded_plans
from support.truth_table import ROWS

RUNS = [(version, name) for version in versions() for name in sorted(kept(version))]
PLANS = {plan for pair in recorded_plans().values() for plan in map(repr, pair)}
OTHER_RUN = "5f0c1b7e-6a0c-4d57-9a3e-0b8e3c525f0e"


def as_of_another_run(analyzed: object) -> str:
    """What Spark writes of the same plan in a later run: other ids of expressions and of the JVM, other objects."""

    def other(value: Any) -> Any:
        if isinstance(value, dict):
            found = {key: other(each) for key, each in value.items()}
            if "jvmId" in found:
                found |= {"id": int(found.get("id", 0)) + 7_000, "jvmId": OTHER_RUN}
            return found
        return [other(each) for each in value] if isinstance(value, list) else value

    text = json.dumps(other(analyzed))
    text = re.sub(r"#(\d+)", lambda found: f"#{int(found[1]) + 7_000}", text)
    return re.sub(r"@[0-9a-f]{6,8}\b", "@1a2b3c4d", text)


def again(version: str, name: str) -> QueryPlan:
    raw = kept(version)[name]
    return read_plan(as_of_another_run(raw["analyzed"]), facts_of(name, version, raw))


def test_there_are_more_than_thirty() -> None:
    """Scripts of every operator, on each Spark; and both scripts of each row of the truth table."""
    assert len(RUNS) > 100
    assert len(PLANS) >= 30


@pytest.mark.parametrize("version", versions())
def test_no_restart_of_the_same_script_is_refused(version: str) -> None:
    """Law 17: each is the same plan, and not only one that fits."""
    found = {name: compare(golden(name, version), again(version, name)) for name in kept(version)}
    assert {name: each.codes for name, each in found.items() if each.codes} == {}
    whole = compare_deployments(
        {name: golden(name, version) for name in found}, {name: again(version, name) for name in found}
    )
    assert whole.verdict == "same"


def test_a_newer_spark_refuses_none() -> None:
    """Law 17: each script on the next Spark."""
    for before, now in pairwise(versions()):
        for name in kept(before).keys() & kept(now).keys():
            assert refusing(compare(golden(name, before), golden(name, now)), accepts_hazards=False) == (), name


def test_what_the_truth_table_restores_is_not_refused() -> None:
    """Law 17: each script of it again, and each change that was restored on real Spark; every other one is refused."""
    verdicts = {row.name: row.verdict for row in ROWS}
    for name, (old, new) in recorded_plans().items():
        for plan in (old, new):
            assert refusing(compare(plan, plan), accepts_hazards=False) == (), name
        assert (refusing(compare(old, new), accepts_hazards=False) == ()) is (verdicts[name] in FITTING), name


def test_another_pace_trigger_or_output_is_refused_nowhere() -> None:
    """Law 17: what leaves the state as it is may change with each start."""
    for name in kept(versions()[-1]):
        old = golden(name, versions()[-1])
        paced = tuple(replace(source, options={"maxfilespertrigger": "7"}) for source in old.sources)
        new = replace(old, trigger="available_now", sources=paced)
        found = compare(replace(old, trigger="default"), new)
        assert refusing(found, accepts_hazards=False) == (), name
        assert set(found.codes) <= {"trigger-changed", "source-pace-changed"}
