"""The requests to S3 in one hour of a stream: the agent's and the controllers', not Spark's."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.store.s3 import s3_store
from support.acting_clock import ActingClock
from support.s3_server import BUCKET, StrikingProxy, options_for
from support.sim_stage import StillLauncher
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, assert_nothing_lost, make_plan

pytestmark = pytest.mark.full

HOUR_SECONDS = 3600.0
MOST_REQUESTS = 4_000
SNAPSHOTS = 6
WAIT_SECONDS = 120.0


class Place:
    """A stream on S3 whose agent and controllers go through the proxy, and whose simulated Spark does not."""

    def __init__(self, prefix: str, folder: Path, proxy: StrikingProxy) -> None:
        clock = ActingClock(limit_seconds=3 * HOUR_SECONDS)
        own = s3_store(BUCKET, prefix, options_for(proxy.endpoint_url), clock=clock)
        self.proxy = proxy
        self.stream = SimulatedStream(
            clock, s3_store(BUCKET, prefix, options_for(f"http://{proxy.server}"), clock=clock)
        )
        self.stream.deploy(settings=default_settings(own.uri))
        self.driver = SimulatedDriver(self.stream, checkpoints=own, control=StreamControl(own, STREAM, clock))
        launcher = StillLauncher(clock)  # type: ignore[arg-type]  # it only asks for the time
        launcher.states["d-0001-a0001"] = "running"
        self.controller = Controller(Home.of(own, own, folder, clock), launcher, clock, "tests")

    def count(self) -> Counter[str]:
        """The requests since the last count, by their operations."""
        found = self.proxy.operations
        self.proxy.forget()
        return found


@pytest.fixture
def place(s3_proxy: StrikingProxy, folder: Path, request: pytest.FixtureRequest) -> Place:
    """Its clock does not move while no actor sleeps: an hour takes no longer than its requests."""
    return Place(re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()), folder, s3_proxy)


@pytest.mark.timeout(900)
def test_an_hour_costs_four_thousand_requests_at_the_most(place: Place) -> None:
    """Idle; and with a snapshot every ten minutes and a drain at its end, each ordered and waited for from outside."""
    plan = make_plan(rows=40)
    found: dict[str, Counter[str]] = {}

    def order(verb: str) -> None:
        order = place.controller.order(verb, STREAM)
        if verb == "snapshot":
            place.controller.wait(WaitCondition("snapshot", STREAM, "", request_id=order.request_id), WAIT_SECONDS)
        else:
            place.controller.wait(WaitCondition.of(order), WAIT_SECONDS)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.sleep(60)
        place.count()
        driver.clock.sleep(HOUR_SECONDS)
        found["idle"] = place.count()
        for _ in range(SNAPSHOTS):
            driver.clock.sleep(HOUR_SECONDS / SNAPSHOTS - 10)
            order("snapshot")
        order("drain")
        found["under commands"] = place.count()

    assert place.driver.run(script) == 0
    assert_nothing_lost(plan)
    totals = {name: sum(counts.values()) for name, counts in found.items()}
    assert {name: total for name, total in totals.items() if total > MOST_REQUESTS} == {}
    # A look at the commands every 2 s; register, commits and beacon every 10 s.
    assert found["idle"] == {"ListObjectsV2": 1800 + 360, "GetObject": 360, "PutObject": 360}
