"""``PruneSnapshotsOperator``."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.operators.snapshot import PruneSnapshotsOperator
from airflow_streamstate.protocol.policies import RetentionPolicy
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def operator(**given: object) -> PruneSnapshotsOperator:
    return PruneSnapshotsOperator(task_id="prune", stream_id="flights", **given)  # type: ignore[arg-type]


def test_it_returns_what_went_and_what_stays(named: NamedHome, context: MakeContext) -> None:
    """Numbers may come from parameters, as text; a retry finds nothing more to do."""
    named.stream().deploy().runs().stopped()
    result = operator(keep="0", older_than_seconds="60", report_only="true").execute(context())
    assert (result["dry_run"], result["removed"]) == (True, [])
    (kept,) = result["kept"]
    assert kept["snapshot_id"] == "d-0001-stopped-000001"
    assert Retention(named.hook().home.control("flights")).read().halves == {}
    assert operator().execute(context())["removed"] == []


def test_at_mirrors_too(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """One that does not answer is reported, and fails nothing: the home is pruned."""
    second, third = tmp_path / "second", tmp_path / "third"
    second.mkdir()
    named.stream().deploy(mirrors=(str(second), str(third))).runs().stopped()
    mirrors = named.hook().client.mirrors
    assert list(mirrors.copy("flights", mirrors.chosen("flights", (str(second),))))
    here, there = operator(at_mirrors="true").execute(context())["mirrors"]
    assert [one["snapshot_id"] for one in here["kept"]] == ["d-0001-stopped-000001"]
    assert str(third) in there["problem"]
    assert operator().execute(context())["mirrors"] == []


def test_without_numbers_the_recorded_retention_decides(named: NamedHome, context: MakeContext) -> None:
    """With either of them it does not count."""
    named.stream().deploy().runs().stopped()
    named.hook().client.details.change_retention("flights", RetentionPolicy(3, 60.0))
    recorded = {"keep": 3, "older_than_seconds": 60.0, "at_mirrors": False, "source": "recorded"}
    assert operator(keep="None", at_mirrors="None").execute(context())["policy"] == recorded
    given = operator(keep=0, older_than_seconds=0, report_only=True).execute(context())["policy"]
    assert given == {"keep": 0, "older_than_seconds": 0.0, "at_mirrors": False, "source": "given"}


@pytest.mark.parametrize("given", [{"keep": "few"}, {"keep": -1}, {"older_than_seconds": "old"}])
def test_what_is_no_number_fails_for_good(named: NamedHome, context: MakeContext, given: dict[str, object]) -> None:
    """No retry makes it one."""
    named.stream().deploy().runs().stopped()
    with pytest.raises(AirflowFailException):
        operator(**given).execute(context())
