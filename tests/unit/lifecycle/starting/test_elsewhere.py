"""A seed at other offsets: what it passes over and reads again is said, and refused where nobody accepted it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_streamstate.errors import IncompatibleUpgradeError, InvalidRequestError, StreamStateError
from airflow_streamstate.lifecycle.observing.views import DeploymentView
from airflow_streamstate.lifecycle.starting.elsewhere import decide_elsewhere
from airflow_streamstate.protocol.events import Stopped
from airflow_streamstate.protocol.positions import SourceIdentity
from support.checkpoints import plan_batch
from support.sim_stage import STREAM, Stage

FILES = (SourceIdentity("file", "file /in"),)
AT = datetime(2026, 3, 1, tzinfo=UTC)
SAFE: dict[str, Any] = {"start": "seed", "discard_state": True}


def at(offset: int) -> dict[str, tuple[str, ...]]:
    return {"counts": (f'{{"logOffset":{offset}}}',)}


def stopped(stage: Stage, last: int = 3) -> None:
    """A deployment that was stopped behind this batch, each of which read a file."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(last)
    end(stage)


def end(stage: Stage) -> None:
    manifest = stage.keep(identities=FILES)
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.end()


def test_what_is_read_again_is_said_before_anything_starts_and_recorded(stage: Stage) -> None:
    """In files, by Spark's own book of them. (Laws 5 and 14)"""
    stopped(stage)
    said: list[DeploymentView] = []
    request = stage.request("print('v2')\n", offsets=at(1), accept_repeated_input=("counts",), **SAFE)
    view = stage.controller.deploy(request, said.append)
    assert view.start.mode == "seed"
    assert stage.spec("d-0002").start.offsets == at(1)
    assert stage.spec("d-0002").start.accept_repeated_input == ("counts",)
    words = 'query counts, source file /in: 2 files read again ({"logOffset":3} to {"logOffset":1})'
    assert words in said[0].notes


@pytest.mark.parametrize(
    ("request_fields", "error", "said"),
    [
        ({"offsets": at(1), **SAFE}, IncompatibleUpgradeError, "--accept-repeated-input counts"),
        ({"offsets": at(3), "start": "seed"}, IncompatibleUpgradeError, "a seed would drop"),
        ({"offsets": {"nosuch": ("1",)}, **SAFE}, InvalidRequestError, "no position of this query"),
        ({"offsets": {"counts": ("1", "2")}, **SAFE}, InvalidRequestError, "not as many offsets"),
        ({"offsets": {"counts": ("[nonsense",)}, **SAFE}, InvalidRequestError, "this is no offset of the source"),
        ({"offsets": at(9), **SAFE}, InvalidRequestError, "none ahead of where it stood"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_recorded(
    stage: Stage, request_fields: dict[str, Any], error: type[StreamStateError], said: str
) -> None:
    """With what it would do, and the options that say it is meant. (Laws 1, 5 and 16)"""
    stopped(stage)
    with pytest.raises(error) as refused:
        stage.deploy("print('v2')\n", **request_fields)
    assert said in f"{refused.value} {refused.value.next_step}"
    assert stage.controller.status(STREAM).deployment_id == "d-0001"
    assert stage.controller.status(STREAM).intent == ""
    assert decide_elsewhere is not None


def test_law_14_a_planned_batch_is_in_the_way(stage: Stage) -> None:
    """The sink may hold it, so nobody can say what is read again."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    plan_batch(stage.run_batches(3), 4)
    end(stage)
    with pytest.raises(IncompatibleUpgradeError, match="a batch is planned and not committed"):
        stage.deploy("print('v2')\n", offsets=at(3), **SAFE)


def test_a_query_that_has_committed_one_batch_has_nothing_to_go_on_behind(stage: Stage) -> None:
    """A seed has two entries in its log."""
    stopped(stage, 0)
    with pytest.raises(IncompatibleUpgradeError, match="behind a second batch"):
        stage.deploy("print('v2')\n", offsets=at(0), **SAFE)


def test_a_time_is_left_to_the_driver_which_alone_can_ask_the_sources(stage: Stage) -> None:
    """It is recorded as it was given, and said."""
    stopped(stage)
    view = stage.deploy("print('v2')\n", begins_at=AT, **SAFE)
    assert stage.spec("d-0002").start.begins_at == AT
    assert "query counts begins with the input since 2026-03-01T00:00:00.000Z" in " ".join(view.notes)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"offsets": at(1)}, "only a seed can begin elsewhere"),
        ({"begins_at": AT, "start": "restore"}, "only a seed can begin elsewhere"),
        ({"begins_at": AT, "offsets": at(1), "start": "seed"}, "two beginnings"),
        ({"begins_at": datetime(2026, 3, 1), "start": "seed"}, "no time zone"),  # noqa: DTZ001 - just that
    ],
)
def test_a_request_that_contradicts_itself_is_none(stage: Stage, fields: dict[str, Any], said: str) -> None:
    """Told in one sentence."""
    with pytest.raises(InvalidRequestError, match=said):
        stage.request(**fields)


def test_a_first_deployment_has_nowhere_to_begin_but_where_its_options_say(stage: Stage) -> None:
    """There is no position that could be moved."""
    with pytest.raises(InvalidRequestError, match="never deployed"):
        stage.deploy(offsets=at(1), start="seed")
