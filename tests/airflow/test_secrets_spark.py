"""References to secrets on real Spark, from a real DAG: the driver has the values, and nothing else holds one."""

from __future__ import annotations

import hashlib
import hmac
import json
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import DeploymentFailedError
from support import airflow_home
from support.airflow_streams import NamedHome
from support.dag_results import returned, states
from support.flights import Flights
from support.launches import wait_until
from support.progress import files_read

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Using .httpx. with"),  # Airflow's in-process API server, not ours
]
PASSWORD, TOKEN, API_KEY = "hunter-of-password-1", "hunter-of-variable-2", "hunter-of-extra-3"
SECRETS = (PASSWORD, TOKEN, API_KEY)
FAILS = """
import os, sys
raise RuntimeError(f"cannot log in with {sys.argv[1]} and {os.environ['THEIR_KEY']}")
"""


def held_by(text: str | bytes) -> list[str]:
    """Which of the secrets a text holds."""
    body = text.encode() if isinstance(text, str) else text
    return [secret for secret in SECRETS if secret.encode() in body]


@contextmanager
def command_lines_watched() -> Iterator[set[str]]:
    """Looks at every command line of this machine again and again; gives those that hold a secret."""
    seen: set[str] = set()
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(0.05):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    line = (folder / "cmdline").read_bytes()
                except OSError:
                    continue  # it has ended
                if held_by(line):
                    seen.add(line.replace(b"\0", b" ").decode(errors="replace"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        has_ended.set()
        watcher.join()


def objects_of(home: NamedHome) -> dict[str, bytes]:
    """Every control object, and every file below the folder of the test: checkpoints, launches, output."""
    found = {}
    for info in home.home.home.list_objects(""):
        stored = home.home.home.get(info.key)
        found[info.key] = b"" if stored is None else stored.body
    found |= {str(path): path.read_bytes() for path in home.base.rglob("*") if path.is_file()}
    return found


def lines_with_secrets(path: str) -> list[str]:
    """To find out where they come from."""
    if not Path(path).is_file():
        return []
    lines = Path(path).read_text(errors="replace").splitlines()
    return [line[:300] for line in lines if held_by(line)]


def open_to_others(path: str) -> bool:
    return bool(stat.S_IMODE(Path(path).stat().st_mode) & 0o077)


@pytest.mark.named
def test_secrets_reach_the_driver_and_nothing_else(
    spark: NamedHome, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind, in arguments, configuration and environment; by deploy, by a dead job's drain, in a failure. Searched:
    every command line, control object, file of the launches, log, XCom, rendered field and error."""
    connection = {"conn_type": "generic", "password": PASSWORD, "extra": {"api_key": API_KEY}}
    monkeypatch.setenv("AIRFLOW_CONN_CUSTOMER", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_VAR_CUSTOMER_TOKEN", TOKEN)
    monkeypatch.setenv("THEIR_KEY", API_KEY)
    flights = Flights(tmp_path / "flights", pieces=4)
    monkeypatch.setenv("FLIGHTS_FOLDER", str(flights.folder))
    hook = spark.hook()
    shown: list[object] = []

    with command_lines_watched() as on_command_lines:
        fed = flights.feed(2)
        run = run_dag("deploy_with_secrets")
        assert states(run) == {"deploy": "success"}
        shown += [returned(run, "deploy"), hook.client.status("flights").to_json()]
        checkpoint = Path(spark.home.checkpoints.uri, "flights/deployments/d-0001/checkpoints/customer")
        wait_until(lambda: files_read(checkpoint) == 2, "two files read", 120)
        hook.client.kill("flights", grace_seconds=0)
        fed += flights.feed(2)
        # The flush of what is dead is a separate launch: it has the secrets, too, or the script would not even start.
        order = hook.client.order("drain", "flights")
        drained = hook.client.wait(
            WaitCondition("drained", "flights", "d-0001", command_id=order.command_id), timeout_seconds=180
        ).need_result()
        shown += [drained, hook.client.status("flights").to_json(), hook.client.logs("flights")]
        shown += [entry.event for entry in hook.client.events("flights")]

        script = tmp_path / "fails.py"
        script.write_text(FAILS)
        failing = deploy_request(
            "fails",
            script,
            arguments=("secret://airflow-connection/customer",),
            conf={"spark.customer.any": "secret://airflow-variable/customer_token"},
            environment={"THEIR_KEY": "env://THEIR_KEY"},
            master="local[1]",
        )
        hook.client.deploy(failing)
        with pytest.raises(DeploymentFailedError) as raised:
            hook.client.wait(WaitCondition("healthy", "fails", "d-0001"), timeout_seconds=120)
        shown += [str(raised.value), raised.value.to_json(), hook.client.logs("fails")]
        shown += [entry.event for entry in hook.client.events("fails")]
    assert "cannot log in with *** and ***" in str(raised.value)

    rows = list(flights.written())
    codes = Counter({row["code"]: 0 for row in rows})
    for row in rows:
        codes[row["code"]] += row["flights"]
    assert codes == expected_codes(fed[: len(fed) // 2])  # the flush reads nothing new; what it had read is all there

    assert on_command_lines == set()
    assert [held_by(str(text)) for text in shown if held_by(str(text))] == []
    holders = {name for name, body in objects_of(spark).items() if held_by(body)}
    handed_over = {name for name in holders if Path(name).name in ("driver.json", "spark.properties")}
    told = {name: lines_with_secrets(name) for name in holders - handed_over}
    assert told == {}
    assert {Path(name).name for name in handed_over} == {"driver.json", "spark.properties"}
    assert [name for name in handed_over if open_to_others(name)] == []
    of_airflow = [path for path in airflow_home.HOME.rglob("*") if path.is_file() and held_by(path.read_bytes())]
    assert of_airflow == []  # its database, with XComs and rendered fields, and its logs


def expected_codes(lines: list[str]) -> Counter[str]:
    """Flights per code, counted plainly."""
    keys = "\n".join(SECRETS).encode()
    return Counter(hmac.new(keys, json.loads(line)["origin"].encode(), hashlib.sha256).hexdigest() for line in lines)
