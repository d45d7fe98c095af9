"""A home with streams in many states, a real Airflow that shows it, and a browser for its users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.request.requests import change_request, deploy_request
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.events import QueryFailed
from airflow_streamstate.protocol.positions import Heartbeat, QueryBeat, SourceLag
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from support import airflow_home, scripted_driver
from support.airflow_site import AirflowSite
from support.airflow_streams import NamedHome, named_home
from support.plan_golden import golden
from support.scripted_driver import script
from support.scripted_rehearsal import keep_plan
from support.scripted_stream import QUERY, ScriptedStream

USERS = {"admin": "admin", "viewer": "viewer", "editor": "user"}
"""Users of the simple auth manager, with their roles: a ``user`` may run DAGs, a ``viewer`` may not."""
PRIVATE_CONN_ID = "streamstate_private"
"""Of a home that only those see who may read its connection: neither the viewer nor the editor."""
WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class PageStory:
    """What a test of the page needs."""

    site: AirflowSite
    home: NamedHome

    @property
    def shown(self) -> str:
        """The page among Airflow's own."""
        return f"{self.site.url}/plugin/streamstate"

    def shown_stream(self, stream_id: str) -> str:
        """The page of a stream among Airflow's own."""
        return f"{self.shown}/streamstate/streams/streamstate_default/{stream_id}"

    @property
    def streams(self) -> str:
        """The page in its own window."""
        return f"{self.site.url}/streamstate/"

    def stream(self, stream_id: str) -> str:
        """The page of a stream in its own window."""
        return f"{self.streams}streams/streamstate_default/{stream_id}"


@contextmanager
def page_story(folder: Path) -> Iterator[PageStory]:
    """A real Airflow over a home on disk with scripted drivers; all of it has ended afterwards."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        tools = scripted_driver.install(folder / "tools")
        for name, value in tools.items():
            patch.setenv(name, value)
        home = stack.enter_context(named_home(folder, patch))
        environment = {
            **tools,
            "AIRFLOW_CONN_STREAMSTATE_DEFAULT": home.connection,
            f"AIRFLOW_CONN_{PRIVATE_CONN_ID.upper()}": home.connection,
            "AIRFLOW__STREAMSTATE__PAGE_CONN_IDS": f"streamstate_default,{PRIVATE_CONN_ID}",
            "AIRFLOW__STREAMSTATE__PAGE_DAG_IDS": "streamstate_default=streamstate_stop",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
        }
        dags = folder / "dags"
        dags.mkdir()
        (dags / "act_on_stream.py").write_bytes((airflow_home.DAGS_FOLDER / "act_on_stream.py").read_bytes())
        yield PageStory(stack.enter_context(AirflowSite(folder / "airflow", dags, environment)), home)


def deployed(home: NamedHome, stream_id: str, *words: str) -> None:
    """A stream whose scripted driver runs, and has proven itself."""
    path = script(home.base, *(words or ("proves", "restores")), name=f"{stream_id}_v1.py")
    client = home.hook().client
    client.deploy(deploy_request(stream_id, path, version_label="v1"))
    client.wait(WaitCondition("healthy", stream_id, "d-0001"), timeout_seconds=WAIT_SECONDS)


def begun(home: NamedHome, stream_id: str, label: str, *words: str, **more: Any) -> str:
    """An upgrade of it that is recorded and that nobody drives; gives the id."""
    path = script(home.base, *(words or ("proves", "restores")), name=f"{stream_id}_{label}.py")
    change = change_request(stream_id, path, version_label=label, reason=f"release {label}")
    request = UpgradeRequest(change, UpgradeTerms(healthy_batches=1, warm=False, **more))
    return home.hook().client.upgrades.begin(request).upgrade_id


def upgraded(home: NamedHome, stream_id: str, label: str, *words: str, **more: Any) -> str:
    """Upgrade it, to the end or until it waits for an approval; gives the id."""
    upgrade_id = begun(home, stream_id, label, *words, **more)
    if not more.get("needs_approval"):
        home.hook().client.upgrades.run(stream_id, upgrade_id, WAIT_SECONDS)
    return upgrade_id


def beats(home: NamedHome, stream_id: str, **said: Any) -> None:
    """The heartbeat of its current driver, with what an agent would report of rates, lag and state."""
    control = home.stream(stream_id).control
    register = control.need_register().value
    known = control.heartbeat(str(register.deployment_id))
    now = SYSTEM_CLOCK.now()
    usual: dict[str, Any] = {
        "state_rows": 48_211,
        "watermark_at": now - timedelta(seconds=95),
        "input_rows_per_second": 1180.4,
        "processed_rows_per_second": 2410.0,
        "batch_seconds": 1.9,
        "batches_since_snapshot": 3,
        "lags": (SourceLag("kafka flights", 5_400, "rows", seconds_to_zero=4.0),),
        "lags_at": now,
    }
    before = QueryBeat(3, now, is_active=True) if known is None else known.queries[QUERY]
    query = replace(before, committed_at=now, **{**usual, **said})
    firsts = {} if known is None else known.first_batches
    control.put_heartbeat(
        Heartbeat(stream_id, str(register.deployment_id), register.attempt, now, {QUERY: query}, firsts)
    )


def lived(home: NamedHome) -> None:
    """The stream ``flights``: a snapshot, an upgrade to another join, a heartbeat with rates and lag."""
    deployed(home, "flights")
    client = home.hook().client
    client.wait(WaitCondition.of(client.order("snapshot", "flights")), timeout_seconds=WAIT_SECONDS)
    upgraded(home, "flights", "v2")
    client.details.change_ownership("flights", "operations", {"team": "operations", "tier": "1"})
    control = home.stream("flights").control
    for deployment_id, name in (("d-0001", "joined_left"), ("d-0002", "joined_inner")):
        keep_plan(control, deployment_id, QUERY, golden(name))


def written_by_hand(home: NamedHome) -> None:
    """More streams, in states that no driver is needed for."""
    acts: Mapping[str, Any] = {
        "bookings": lambda stream: stream.deploy().runs(),
        "clicks-eu": lambda stream: stream.deploy().runs(),
        "clicks-us": lambda stream: stream.deploy().runs(),
        "fares": lambda stream: stream.deploy().runs().stopped(),
        "inventory": _restarted,
        "ledger": lambda stream: stream.deploy().runs().drained(),
        "parcels": _degraded,
        "sessions": lambda stream: stream.deploy().runs().failed("ValueError: time data 'n/a' does not match"),
        "weather": lambda stream: stream.deploy(),
    }
    for stream_id, act in acts.items():
        act(home.stream(stream_id))
    details = home.hook().client.details
    for stream_id, owner, labels in (
        ("clicks-eu", "web analytics", {"team": "web", "region": "eu"}),
        ("clicks-us", "web analytics", {"team": "web", "region": "us"}),
        ("ledger", "payments", {"team": "payments", "tier": "1"}),
    ):
        details.change_ownership(stream_id, owner, labels)


def all_beat(home: NamedHome) -> None:
    """The heartbeat of every stream whose driver runs; without one they count as lost after a while."""
    for number, stream_id in enumerate(["bookings", "clicks-eu", "clicks-us", "inventory", "parcels"]):
        beats(
            home,
            stream_id,
            batch_seconds=0.4 + number * 0.7,
            lags=(SourceLag("kafka", 120 * number**2, "rows"),),
            lags_at=SYSTEM_CLOCK.now(),
            state_rows=1_000 * number,
            watermark_at=SYSTEM_CLOCK.now() - timedelta(seconds=20 * (number + 1)),
        )
    beats(home, "flights")


def _restarted(stream: ScriptedStream) -> None:
    stream.deploy().runs().failed("ConnectionError: broker 2 is away")
    stream.resume().runs()


def _degraded(stream: ScriptedStream) -> None:
    stream.deploy().runs().say(
        QueryFailed, query_name=QUERY, query_id="id", query_run_id="run", batch_id=0, planned_batch_id=1,
        error="SparkException: executor lost",
    )  # fmt: skip
