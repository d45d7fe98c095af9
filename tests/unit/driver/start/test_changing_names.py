"""Names that no later start finds again (1a.12)."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_streamstate.driver.start.query_names import ThisStart, find_changing, lasting_name
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Noted, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan

NOW = datetime(2026, 11, 28, 23, 30, tzinfo=timezone.utc)
THIS = ThisStart(NOW, "app-20261128-0003", 4711, "d-0001-a0001")


@pytest.mark.parametrize(
    ("name", "part", "is_certain"),
    [
        ("app-20261128-0003", "app-20261128-0003", True),
        ("shops-app-20261128-0003", "app-20261128-0003", True),
        ("run_d-0001-a0001", "d-0001-a0001", True),
        ("tmpab12cd34", "tmpab12cd34", False),
        ("x-7d5b2c0e-5c0f-4a58-8a55-52ac66a1f0a1", "7d5b2c0e-5c0f-4a58-8a55-52ac66a1f0a1", False),
        ("shops-4711", "4711", False),
        ("shops-2026-11-28", "2026-11-28", False),
        ("shops_20261129", "20261129", False),
        (f"shops-{int(NOW.timestamp())}", str(int(NOW.timestamp())), False),
        (f"shops-{int(NOW.timestamp())}123", f"{int(NOW.timestamp())}123", False),
    ],
)
def test_a_part_of_this_start_is_found(name: str, part: str, is_certain: bool) -> None:
    """Spark's application, the process, the launch, the day, the moment."""
    found = find_changing(name, THIS, is_own=False)
    assert found is not None
    assert (found.part, found.is_certain) == (part, is_certain)


@pytest.mark.parametrize(
    "name", ["shops", "v2", "shops-2024-01-01", "shops-47110", "top100", "tmp_of_orders", "query-1"]
)
def test_what_lasts_is_no_matter(name: str) -> None:
    """A year of a data set, a version, a number."""
    assert find_changing(name, THIS, is_own=False) is None


@pytest.mark.parametrize(
    ("name", "location", "lasting"),
    [
        ("app-20261128-0003", "/data/ckpt/app-20261128-0003", "ckpt"),
        ("shops-app-20261128-0003", "/data/ckpt/x", "shops"),
        ("app-20261128-0003", "app-20261128-0003", "main"),
        ("app-20261128-0003", "s3a://lake/app-20261128-0003", "lake"),
    ],
)
def test_a_lasting_name_is_proposed(name: str, location: str, lasting: str) -> None:
    """What is left of it, else the folder above."""
    found = find_changing(name, THIS, is_own=False)
    assert found is not None
    assert lasting_name(name, found, location) == lasting


def test_a_deploy_says_it_with_the_line_and_the_command(stream: SimulatedStream) -> None:
    """Before the first resume fails. In the note of the deploy, and in the record of the query's start."""

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(20, trigger="available_now"), None, "/data/ckpt/local-1")
        driver.await_all()

    assert stream.run(script) == 0
    (note,) = [each.text for each in stream.events_of(Noted) if "next start" in each.text]
    assert '.queryName("ckpt")' in note
    assert "--rename-query local-1=ckpt" in note
    assert stream.events_of(QueryStarted)[0].remarks == (note,)


def test_a_renamed_query_goes_on_with_its_state(stream: SimulatedStream) -> None:
    """Same query id, next batch id; and a later deployment finds it again. (Law 9)"""
    plan = make_plan(400)

    def start_as(name: str | None, location: str | None = None) -> None:
        number = len(stream.control.deployment_ids())
        stream.order_at(3.0, StopRequest, f"d-{number:04d}")

        def script(driver: SimulatedDriver) -> None:
            driver.start(plan, name, location)
            driver.await_all()

        assert stream.run(script, f"d-{number:04d}") == 0

    start_as(None, "/data/ckpt/local-1")
    end = stream.events_of(Stopped)[0]
    stream.deploy(2, StartPlan("restore", end.snapshot_id, "d-0001", rename_queries={"local-1": "ckpt"}))
    start_as("ckpt")
    first, second = stream.events_of(QueryStarted)[0], stream.events_of(QueryStarted, "d-0002")[0]
    assert (second.query_name, second.how, second.query_id) == ("local-1", "restored", first.query_id)
    assert second.batch_id == end.queries["local-1"].batch_id
    assert any("the script calls query local-1 ckpt" in remark for remark in second.remarks)
