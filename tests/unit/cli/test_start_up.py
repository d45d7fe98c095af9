"""What each verb imports: a command that starts nothing answers at once (``benchmarks/shell.py`` measures how soon)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.records import LaunchRecord
from support.shell import VERBS, Desk

PACKAGE = "airflow_streamstate"
LOOKS: Mapping[str, int] = {
    "list": 88,
    "status flights": 88,
    "events flights": 88,
    "logs flights": 88,
    "audit flights": 85,
    "snapshot list flights": 95,
    "snapshot retention flights": 84,
    "policy flights": 84,
    "alerts flights": 84,
    "label flights": 84,
}
"""Each verb that only looks, with the modules of the package that it may import: a few more than it does."""
TOUCHES: Mapping[str, int] = {
    "snapshot verify flights d-0001-stopped-000001": 123,
    "snapshot inspect flights": 123,
    "snapshot pin flights d-0001-stopped-000001": 123,
    "snapshot unpin flights d-0001-stopped-000001": 123,
    "snapshot prune flights --dry-run": 123,
    "watch --once": 128,
}
"""Each that may act and starts no driver here, with its modules."""
HELP_MODULES = 90
"""The help of all verbs together; it needs the options and the declared terms."""
ROOMS_OF_ACTS = (
    *("alerts", "declarations", "driver", "hooks", "operators", "page"),
    *("controller.adopt", "controller.commands", "controller.decide", "controller.deploy"),
    *("controller.drivers.driver_launch", "controller.mirrors", "controller.scratch", "controller.request"),
    *("controller.retention.pruning", "controller.retention.retiring", "controller.supervise", "controller.upgrade"),
    *("controller.wait.waiting", "launch.command", "launch.emr", "launch.kubernetes"),
    *("launch.local_start", "launch.spark_home", "launch.rest", "launch.ssh", "launch.yarn"),
    *("snapshot.capture", "snapshot.copy", "snapshot.deletion", "snapshot.location", "snapshot.verify"),
    *("store.azure", "store.gcs", "store.obstore", "store.s3", "store.server"),
)
"""What starts, changes or removes something, and the stores that are no disk."""
ROOMS_OF_STARTS = (
    *("alerts", "declarations", "driver", "hooks", "operators", "page"),
    *("controller.adopt", "controller.deploy.deployment", "controller.request", "controller.upgrade"),
    *("launch.command", "launch.emr", "launch.kubernetes", "launch.local_start", "launch.rest", "launch.ssh"),
    *("launch.yarn", "store.azure", "store.gcs", "store.obstore", "store.s3", "store.server"),
)
"""Of these what a verb needs that looks, and prunes or pins; a watch has them when it starts something."""
LIBRARIES = (
    *("airflow", "boto3", "botocore", "grpc", "kubernetes", "obstore", "paramiko", "prometheus_client", "pydantic"),
    *("pyspark", "requests", "sqlalchemy", "yaml", "asyncio", "http", "multiprocessing", "ssl", "unittest"),
)
_IMPORTED = """
import contextlib, io, json, sys
from airflow_streamstate.cli.main import run
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
    ends = [run(line.split()) for line in sys.argv[1:]]
assert set(ends) <= {0, 1}, (ends, said.getvalue())
print(json.dumps(sorted(sys.modules)))
"""


def imported_by(*lines: str) -> list[str]:
    """The modules that a new process has imported after these command lines."""
    done = subprocess.run([sys.executable, "-c", _IMPORTED, *lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def _is_within(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}.")


def own(modules: list[str]) -> list[str]:
    """Those of the package."""
    return [name for name in modules if _is_within(name, PACKAGE)]


def out_of_place(modules: list[str], *more: str, rooms: tuple[str, ...] = ROOMS_OF_ACTS) -> list[str]:
    """Those that a verb which starts nothing may not import."""
    tops = (*(f"{PACKAGE}.{room}" for room in rooms), *LIBRARIES, *more)
    return [name for name in modules if any(_is_within(name, top) for top in tops)]


@pytest.fixture
def desk_with_streams(desk: Desk) -> Desk:
    """A stream whose second version runs, launched on this machine; the first one left a snapshot."""
    stream = desk.stream()
    stream.deploy().runs().stopped()
    attempt = stream.deploy()
    key = launch_key_for(attempt.deployment_id, attempt.attempt)
    stream.control.create_launch(
        LaunchRecord(
            stream_id=attempt.stream_id, deployment_id=attempt.deployment_id, attempt=attempt.attempt, launch_key=key,
            launcher="local", data={"launch_key": key}, log_path="", launched_at=SYSTEM_CLOCK.now(), write_id="w-1",
        )
    )  # fmt: skip
    attempt.runs()
    return desk


@pytest.mark.parametrize("line", LOOKS)
def test_a_verb_that_looks_imports_nothing_that_acts(line: str, desk_with_streams: Desk) -> None:
    """On a disk, of a stream that runs here: no launcher's start, no deploy, no upgrade, no library of a store."""
    modules = imported_by(line)
    assert out_of_place(modules) == []
    assert len(own(modules)) <= LOOKS[line], own(modules)


@pytest.mark.parametrize("line", TOUCHES)
def test_a_verb_that_starts_no_driver_imports_no_launch(line: str, desk_with_streams: Desk) -> None:
    """On a disk, of a stream that runs here: no deploy, no upgrade, no HTTP, until one is due."""
    modules = imported_by(line)
    assert out_of_place(modules, rooms=ROOMS_OF_STARTS) == []
    assert len(own(modules)) <= TOUCHES[line], own(modules)


def test_help_imports_options_and_terms_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every verb, in one process: no room but the declared terms, and nothing that prints tables."""
    monkeypatch.delenv("STREAMSTATE_ALLOWED", raising=False)
    modules = imported_by("--help", *(f"{verb} --help" for verb in VERBS))
    rooms = tuple(f"{PACKAGE}.{room}" for room in ("controller", "checkpoint", "control", "plan", "snapshot", "store"))
    assert out_of_place(modules, *rooms, "rich") == []
    assert len(own(modules)) <= HELP_MODULES, own(modules)


def test_json_needs_no_tables(desk_with_streams: Desk) -> None:
    """A script that reads JSON does not wait for what draws."""
    assert [name for name in imported_by("list --json", "status flights --json") if _is_within(name, "rich")] == []


@pytest.mark.parametrize("room", sorted({*ROOMS_OF_ACTS, *ROOMS_OF_STARTS}))
def test_the_rooms_are_there(room: str) -> None:
    """A room that was renamed would be allowed without notice."""
    assert importlib.util.find_spec(f"{PACKAGE}.{room}") is not None
