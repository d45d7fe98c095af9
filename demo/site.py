"""A real Airflow with three streams of real flights, to look at and to try things on, until it is ended."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import StreamStateError
from demo import acts
from demo.feed import Feed
from demo.life import DAGS, JOBS, RECORDING, airflow_site, end_drivers
from demo.place import place


@dataclass(frozen=True)
class Version:
    """What a stream runs: its script, where its results are below the folder, and Spark's master."""

    job: str
    results: str
    master: str = "local[1]"


STREAMS = {
    # As the example DAGs have it by default, so that each of them can be triggered as it is.
    "flights": Version("count_by_origin.py", "delays", "local[2]"),
    "flights-by-route": Version("count_by_route.py", "results/flights-by-route"),
    "flights-mean": Version("mean_by_origin.py", "results/flights-mean"),
}
ROWS_PER_FILE = 50
SECONDS_BETWEEN_FILES = 5.0
"""So that all flights arrive in half an hour."""
WAIT_SECONDS = "300"
UNPAUSED = ("on_stream_event",)
SHELL_FILE = "env.sh"
OF_DRIVERS = ("SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
SECONDS_BETWEEN_LOOKS = 2.0


def show(out: Path, console: Console, *, on_s3: bool) -> None:
    """Start everything below ``out``, print how to reach it, and run until the person ends it."""
    with ExitStack() as running:
        running.callback(console.rule, "everything has ended")
        try:
            _begin(running, out, console, on_s3=on_s3)
            threading.Event().wait()
        except KeyboardInterrupt:
            console.rule("ending")


def _begin(running: ExitStack, out: Path, console: Console, *, on_s3: bool) -> None:
    where = running.enter_context(place(out, checkpoints_on_s3=on_s3))
    console.print(f"the home: {where.words}", highlight=False)
    _write_for_shells(out / SHELL_FILE, where.environment)
    controller = Controller.local(Home(where.config), clock=SYSTEM_CLOCK, requested_by="the demo")
    running.callback(end_drivers, controller)
    console.rule("a real Airflow on loopback")
    airflow = running.enter_context(airflow_site(out, where))
    feed = Feed(
        RECORDING, out / "incoming", SYSTEM_CLOCK, rows_per_file=ROWS_PER_FILE,
        seconds_between_files=SECONDS_BETWEEN_FILES,
    )  # fmt: skip
    running.callback(feed.stop)
    feed.let_arrive(1.0)
    feed.start()
    console.rule("three streams")
    for stream_id in STREAMS:
        _deploy(console, stream_id, out, where.conf)
    for dag_id in UNPAUSED:
        airflow.unpause(dag_id)
    _tell(console, airflow, out)
    running.enter_context(_looked_after(console, controller))


def arguments_of(stream_id: str, out: Path) -> list[str]:
    """The arguments of a stream's script."""
    return ["--input", f"{out}/incoming", "--output", f"{out}/{STREAMS[stream_id].results}"]


def _deploy(console: Console, stream_id: str, out: Path, conf: Mapping[str, str]) -> None:
    version = STREAMS[stream_id]
    acts.shell(
        console, "deploy", stream_id, "--app", str(JOBS / version.job), "--master", version.master,
        "--on-failure", "restart", *(word for key, value in conf.items() for word in ("--conf", f"{key}={value}")),
        "--timeout", WAIT_SECONDS, "--", *arguments_of(stream_id, out),
    )  # fmt: skip


def _write_for_shells(path: Path, environment: Mapping[str, str]) -> None:
    """What a shell sources to use ``streamstate`` on this home; only its owner can read it, for the keys in it."""
    drivers = {name: os.environ[name] for name in OF_DRIVERS if name in os.environ}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in {**environment, **drivers}.items()]
    lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
    path.touch(0o600)
    path.write_text("".join(f"{line}\n" for line in lines))


@contextmanager
def _looked_after(console: Console, controller: Controller) -> Iterator[None]:
    """Within this a killed driver is started again, as by ``streamstate watch``, and each new pid is reported."""
    ended = threading.Event()
    looks = [
        threading.Thread(target=look, args=(console, controller, ended), daemon=True) for look in (_watch, _tell_pids)
    ]
    for look in looks:
        look.start()
    try:
        yield
    finally:
        ended.set()
        for look in looks:
            look.join(30)


def _watch(console: Console, controller: Controller, ended: threading.Event) -> None:
    controller.watcher(
        lambda line: console.print(f"{line.stream_id} {line.sight}: {line.text}", highlight=False, markup=False)
    ).run(ended.is_set)


def _tell_pids(console: Console, controller: Controller, ended: threading.Event) -> None:
    told: dict[str, str] = {}
    while not ended.is_set():
        for stream_id in STREAMS:
            with suppress(StreamStateError):  # the next poll may see more
                driver = _driver(controller, stream_id)
                if driver and told.get(stream_id) != driver:
                    told[stream_id] = driver
                    console.print(f"stream {stream_id}: {driver}", highlight=False)
        ended.wait(SECONDS_BETWEEN_LOOKS)


def _driver(controller: Controller, stream_id: str) -> str:
    """The driver of the current attempt, as text; "" while there is no driver."""
    control = controller.home.control(stream_id)
    register = control.need_register().value
    if register.deployment_id is None:
        return ""
    claim = control.claim(register.deployment_id, register.attempt)
    if claim is None or claim.pid == 0:
        return ""
    return f"driver pid {claim.pid} ({register.deployment_id}, attempt {register.attempt})"


def _tell(console: Console, airflow: Any, out: Path) -> None:
    passwords: dict[str, str] = {}
    with suppress(OSError):
        passwords = json.loads((out / "airflow" / "passwords.json").read_text())
    user, password = next(iter(passwords.items()), ("admin", f"in {out / 'airflow' / 'passwords.json'}"))
    console.rule("it runs")
    console.print(f"Airflow: [bold]{airflow.url}[/]  user {user}, password {password}", highlight=False)
    console.print(
        f"Another shell reaches this home after: [bold]. {out / SHELL_FILE}[/]   then: streamstate status flights",
        highlight=False,
    )
    console.print(
        "There, kill -9 the driver of the stream flights, by its pid below. Its restart, the event of the asset and the"
        " run of on_stream_event come by themselves; the driver of another stream is restarted, too. Trigger"
        " upgrade_in_one_task as it is: it upgrades flights.",
        highlight=False,
    )
    console.print(
        f"Put a DAG of your own into [bold]{DAGS}[/]: Airflow finds it within seconds. Its connection is"
        " streamstate_default. Ctrl-C ends everything.",
        highlight=False,
    )
