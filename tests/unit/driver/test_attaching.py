"""A script that becomes an attempt by a line in its own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.driver.attaching import DRIVER_VARIABLE, attach
from airflow_streamstate.driver.attempt.callbacks import OF_THIS_PROCESS
from airflow_streamstate.driver.config import DriverConfig
from airflow_streamstate.protocol.events import Failed, Finished
from airflow_streamstate.store.local import LocalStore
from support.simulated_driver import STREAM, SimulatedStream

pytestmark = pytest.mark.fast

REPOSITORY = Path(__file__).resolve().parents[3]


def script_of(text: str, folder: Path, *, config: DriverConfig | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script in its own process."""
    path = folder / "job.py"
    path.write_text("from airflow_streamstate.driver import attach\n" + textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop(DRIVER_VARIABLE, None)
    if config is not None:
        (folder / "driver.json").write_text(json.dumps(config.to_json()))
        environment[DRIVER_VARIABLE] = str(folder / "driver.json")
    return subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def stream(tmp_path: Path) -> SimulatedStream:
    """A stream on disk with one deployment that no driver has claimed."""
    stream = SimulatedStream(checkpoints=LocalStore(tmp_path / "home"))
    stream.deploy()
    return stream


def config_of(stream: SimulatedStream, attempt: int = 1) -> DriverConfig:
    uri = stream.checkpoints.uri
    return DriverConfig(uri, uri, STREAM, "d-0001", attempt, f"d-0001-a{attempt:04d}", "job.py")


@pytest.mark.parametrize(
    ("text", "status", "out", "error"),
    [
        ("print(attach().is_supervised)", 0, "False\n", ""),
        ("with attach():\n    raise ValueError('boom')", 1, "", "ValueError: boom"),
    ],
)
def test_without_a_deployment_it_says_so_and_does_nothing(
    tmp_path: Path, text: str, status: int, out: str, error: str
) -> None:
    """The same script runs by a plain spark-submit; Python prints its errors."""
    done = script_of(text, tmp_path)
    assert (done.returncode, done.stdout) == (status, out)
    assert "no deployment to attach to" in done.stderr
    assert error in done.stderr


def test_under_the_runner_there_is_nothing_to_attach_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal, or a deployment without --attach."""
    monkeypatch.setattr(OF_THIS_PROCESS, "is_supervised", True)
    with attach() as attached:
        assert attached.is_supervised


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("attach()\nprint('done')", 0, Finished),
        ("attach()\nraise ValueError('boom')", 1, Failed),
        ("attach()\nimport sys\nsys.exit(7)", 7, Failed),
        ("attach()\nimport sys\nsys.exit()", 0, Finished),
        ("with attach():\n    raise SystemExit(5)", 5, Failed),
        ("with attach():\n    print('done')", 0, Finished),
        ("with attach():\n    raise ValueError('boom')", 1, Failed),
        ("attach()\nimport sys\nsys.excepthook = lambda *_: print('boom', file=sys.stderr)\n1 / 0", 1, Failed),
    ],
)
def test_the_end_of_the_script_is_the_end_of_the_attempt(
    stream: SimulatedStream, tmp_path: Path, text: str, status: int, kind: type
) -> None:
    """Its status is the script's own, its words and traceback are in the event."""
    done = script_of(text, tmp_path, config=config_of(stream))
    assert done.returncode == status, done.stderr
    assert stream.kinds()[0] == "Claimed"
    (last,) = stream.events_of(kind)
    if "boom" in text:
        assert isinstance(last, Failed)
        assert last.error in ("ValueError: boom", "ZeroDivisionError: division by zero")
        assert "job.py" in last.traceback
        assert done.stderr.count("boom") == done.stderr.count("ValueError('boom')") + 1


def test_an_attached_script_lies_where_it_was_deployed_from(stream: SimulatedStream, tmp_path: Path) -> None:
    """A module by a name that only the run knows is found, and pinned (Law 15); a pinned one stays as it was pinned;
    data alongside the script is read."""
    jobs, launch = tmp_path / "jobs", tmp_path / "launch" / "code"
    (jobs / "plugins").mkdir(parents=True)
    launch.mkdir(parents=True)
    for path, text in (
        (jobs / "plugins" / "zz_euro.py", "NAME = 'euro'\n"),
        (jobs / "zz_helpers.py", "X = 'changed'\n"),
        (launch / "zz_helpers.py", "X = 'pinned'\n"),
        (jobs / "settings.txt", "zz_euro"),
    ):
        path.write_text(text)
    config = replace(
        config_of(stream),
        application=str(launch / "job.py"),
        script_path=str(jobs / "job.py"),
        modules=("zz_helpers.py",),
    )
    text = """
    attach()
    import importlib, sys, zz_helpers
    from pathlib import Path
    here = Path(__file__).parent
    sys.path.append(str(here / "plugins"))
    print(importlib.import_module((here / "settings.txt").read_text()).NAME, zz_helpers.X, sys.argv[0])
    """
    done = script_of(text, launch, config=config)
    assert (done.returncode, done.stdout) == (0, f"euro pinned {jobs / 'job.py'}\n"), done.stderr
    spec = stream.control.with_found_modules(stream.control.spec("d-0001"))
    assert [module.name for module in spec.version.modules] == ["plugins/zz_euro.py"]


@pytest.mark.parametrize("lead", ["attach()\n", "with attach():\n    "])
def test_a_refusal_is_one_line_with_its_place(stream: SimulatedStream, tmp_path: Path, lead: str) -> None:
    """As under the runner: where in the script, and what to do, without a traceback."""
    text = "from airflow_streamstate.errors import UnsupportedCheckpointError as Refusal\n"
    text += lead + "raise Refusal('the trigger continuous knows no barrier', next_step='Choose another.')"
    done = script_of(text, tmp_path, config=config_of(stream))
    assert done.returncode == 1
    assert "job.py, line 4: the trigger continuous knows no barrier. Choose another.\n" in done.stderr
    assert "Traceback" not in done.stderr
    [failed] = stream.events_of(Failed)
    assert failed.is_refusal


def test_a_driver_that_is_not_the_attempt_ends_before_the_script_begins(
    stream: SimulatedStream, tmp_path: Path
) -> None:
    """One sentence, status 4 (Law 4)."""
    done = script_of("attach()\nprint('never')", tmp_path, config=config_of(stream, attempt=2))
    assert (done.returncode, done.stdout) == (4, "")
    assert "Traceback" not in done.stderr
