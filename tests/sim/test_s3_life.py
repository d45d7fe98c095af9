"""Whole lives with everything on S3: home, checkpoints, snapshots and forks, counted and under faults."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_streamstate.errors import ConflictError, DeadlineExceededError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.store.base import Link, Store
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.s3 import s3_store
from airflow_streamstate.store.server import ServerStore
from airflow_streamstate.store.transfer import delete_many, end_uploads, link_many
from support.fake_clock import FakeClock
from support.s3_server import BUCKET, Strike, StrikingProxy, Weather, options_for
from support.sim_laws import assert_laws
from support.sim_life import Life, make_world
from support.sim_world import World
from support.split_store import SplitStore

pytestmark = pytest.mark.full

OUTAGE_SECONDS = 120.0
PART_BYTES = 5 * 1024 * 1024
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "s3.md"


@pytest.fixture
def store(s3_proxy: StrikingProxy, request: pytest.FixtureRequest) -> ServerStore:
    """A store behind the proxy, whose pauses take no time."""
    prefix = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())
    return s3_store(
        BUCKET,
        prefix,
        options_for(s3_proxy.endpoint_url),
        clock=FakeClock(seed=99),
        single_copy_bytes=PART_BYTES,
        part_bytes=PART_BYTES,
    )


@pytest.fixture
def policy() -> dict[str, set[str]]:
    """The policy of the documentation: what it allows on what."""
    block = re.search(r"```json\n(\{.*?\n\})\n```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    statements = json.loads(block[1])["Statement"]
    return {statement["Resource"]: set(statement["Action"]) for statement in statements}


def live(folder: Path, store: Store) -> Life:
    """Deploy, snapshot, stop, redeploy, drain, redeploy, drain: rows in are rows out, and no law is broken."""
    world = make_world(folder)
    world.store = store  # type: ignore[assignment]
    life = Life(world)
    life.live()
    assert_laws(world)
    assert all(len(plan.sink.batches) > 8 for plan in world.plans.values())
    return life


@pytest.mark.timeout(900)
def test_a_whole_life_under_faults_loses_nothing(folder: Path, store: ServerStore, s3_proxy: StrikingProxy) -> None:
    """A tenth of all requests goes wrong in every way that there is, and nothing is lost, doubled or half there."""
    s3_proxy.weather = Weather(0.1, seed=7, mercy=True)
    live(folder, store)
    assert sum(s3_proxy.weather.struck.values()) > 50


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", [60, 140, 260, 400])
def test_a_home_that_is_gone_ends_no_driver(
    folder: Path, store: ServerStore, s3_proxy: StrikingProxy, first: int
) -> None:
    """With the home out of reach for 40 requests in a row the job continues, orders are repeated, and no law breaks."""
    s3_proxy.outages.append(range(first, first + 40))
    life = live(folder, SplitStore(store, MemoryStore()))
    assert len(s3_proxy.seen) > first + 40
    assert {type(error) for error in life.refusals} <= {UnavailableError, OutcomeUnknownError}
    assert not [words for words in life.world.said if "Traceback" in words]


class Outage:
    """Two minutes of the simulated time, from a moment on."""

    def __init__(self, world: World, since_seconds: float) -> None:
        self._schedule = world.schedule
        self._span = since_seconds, since_seconds + OUTAGE_SECONDS

    def is_set(self) -> bool:
        since, until = self._span
        return since <= self._schedule.now_seconds < until


@pytest.mark.timeout(900)
@pytest.mark.parametrize("since_seconds", [1.0, 4.0, 8.0])
def test_two_minutes_without_a_server_end_no_driver(
    folder: Path, store: ServerStore, s3_proxy: StrikingProxy, since_seconds: float
) -> None:
    """From its start, between two orders, under one: no job ends for it, and nothing is lost or doubled."""
    world = make_world(folder)
    world.store = SplitStore(store, MemoryStore())  # type: ignore[assignment]
    s3_proxy.is_out = Outage(world, since_seconds)
    life = Life(world)
    life.live()
    assert_laws(world)
    assert world.schedule.now_seconds > since_seconds + OUTAGE_SECONDS
    assert not [words for words in world.said if "Traceback" in words]
    ends = {type(error) for error in life.refusals}
    assert ends & {UnavailableError, OutcomeUnknownError, DeadlineExceededError}
    assert ends <= {UnavailableError, OutcomeUnknownError, DeadlineExceededError, ConflictError}


@pytest.mark.timeout(900)
def test_the_policy_is_what_is_really_asked(
    folder: Path, store: ServerStore, s3_proxy: StrikingProxy, policy: dict[str, set[str]]
) -> None:
    """The documented policy allows exactly the actions of a whole life and of copies in parts, and no more."""
    live(folder, store)
    store.put("large", b"x" * (PART_BYTES + 1))
    link_many(store, [Link("large", "copy", PART_BYTES + 1)])
    s3_proxy.strikes.append(Strike("PUT", False, 503, "SlowDown", times=99, path_part="partNumber=2"))
    with pytest.raises(UnavailableError):
        link_many(store, [Link("large", "other", PART_BYTES + 1)])
    delete_many(store, ["large", "copy"])
    end_uploads(store, "orders", FakeClock().now())
    asked = {bool(request.key): set[str]() for request in s3_proxy.seen}
    for request in s3_proxy.seen:
        asked[bool(request.key)].update(request.actions)
    # Deleting many is asked of the bucket and allowed on its objects.
    asked[False].discard("s3:DeleteObject")
    assert policy["arn:aws:s3:::BUCKET"] == asked[False]
    assert policy["arn:aws:s3:::BUCKET/PREFIX/*"] == asked[True]
