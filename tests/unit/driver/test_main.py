from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.driver.main import FAILED_STATUS, USAGE_STATUS, main
from airflow_streamstate.protocol.events import Claimed, Failed, Finished
from airflow_streamstate.protocol.scratch import Rehearsal, ScratchRun, ScratchVerdict
from airflow_streamstate.protocol.terms.order import RehearsalTerms
from support.drivers import STREAM, Deployments
from support.earlier_home import STREAM_THERE, WORDS, earlier_home

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parents[3]


def _run(tmp_path: Path, *, script: str = "print('hello')", **changes: object) -> subprocess.CompletedProcess[str]:
    """A driver without spark-submit, for scripts that start no Spark."""
    job = tmp_path / "job.py"
    job.write_text(script)
    config = {
        "home_uri": str(tmp_path / "home"),
        "checkpoints_uri": str(tmp_path / "home"),
        "stream_id": STREAM,
        "deployment_id": "d-0001",
        "attempt": 1,
        "launch_key": "d-0001-a1",
        "application": str(job),
        "arguments": ["x"],
    }
    environment = changes.pop("environment", {})
    assert isinstance(environment, dict)
    (tmp_path / "driver.json").write_text(json.dumps({**config, **changes}))
    return subprocess.run(
        [sys.executable, "-m", "airflow_streamstate.driver.main", "--", str(tmp_path / "driver.json")],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **environment},
    )


@pytest.fixture
def stream(tmp_path: Path) -> Deployments:
    """A home with one deployment that no driver has claimed."""
    deployments = Deployments(tmp_path)
    deployments.record("")
    return deployments


@pytest.mark.parametrize("arguments", [[], ["--"], ["--", "a", "b"]])
def test_a_runner_without_its_one_argument_says_how_it_is_used(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, as for every wrong usage."""
    assert main(arguments) == USAGE_STATUS
    assert "usage" in capsys.readouterr().err


def test_the_claim_does_not_wait_for_pyspark() -> None:
    """Its import takes a second."""
    check = "import sys, airflow_streamstate.driver.main; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, timeout=60, check=False).returncode == 0


def test_a_configuration_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As text, without a traceback."""
    (tmp_path / "driver.json").write_text("{}")
    assert main(["--", str(tmp_path / "driver.json")]) == FAILED_STATUS
    error = capsys.readouterr().err
    assert "driver's configuration" in error
    assert "Traceback" not in error


def test_a_script_without_a_query_is_claimed_and_finished(tmp_path: Path, stream: Deployments) -> None:
    """Its output is its own, and the deployment knows that it ran."""
    ended = _run(tmp_path, script="import sys; print('hello', sys.argv[1], __name__)")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "hello x __main__\n"
    assert len(stream.events(Claimed)) == 1
    assert stream.events(Finished)[0].snapshot_id is None


def test_a_script_that_fails_keeps_its_words_and_its_status(tmp_path: Path, stream: Deployments) -> None:
    """Both on stderr and in the deployment's last event."""
    ended = _run(tmp_path, script="def f():\n    raise ValueError('no customers')\nf()\n")
    assert ended.returncode == 1
    failed = stream.events(Failed)[0]
    assert failed.error == "ValueError: no customers"
    assert failed.traceback in ended.stderr
    assert "runner" not in failed.traceback


def test_a_secret_in_a_script_that_fails_is_in_no_line_of_its_log(tmp_path: Path, stream: Deployments) -> None:
    """Python prints its last words; what references stood for is hidden there, in threads too."""
    script = (
        "import sys, threading\n"
        "def fail():\n    raise ValueError('no login with ' + sys.argv[1])\n"
        "thread = threading.Thread(target=fail)\nthread.start()\nthread.join()\nfail()\n"
    )
    ended = _run(tmp_path, script=script, arguments=["hunter2-secret"], secrets=["hunter2-secret"])
    assert ended.returncode == 1
    assert ended.stderr.count("ValueError: no login with ***\n") == 2
    assert "hunter2" not in ended.stderr


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AZURE_CLIENT_SECRET"])
def test_the_credentials_of_the_home_are_hidden_like_secrets(tmp_path: Path, stream: Deployments, name: str) -> None:
    """A script that fails over them shows them neither in its log nor in the event."""
    script = f"import os\nraise ValueError('denied for ' + os.environ['{name}'])\n"
    ended = _run(tmp_path, script=script, environment={name: "hunter2-of-home"})
    assert "ValueError: denied for ***\n" in ended.stderr
    assert stream.events(Failed)[0].error == "ValueError: denied for ***"
    assert "hunter2" not in ended.stderr + stream.events(Failed)[0].traceback


def test_connect_in_the_environment_fails_the_attempt_by_name(tmp_path: Path, stream: Deployments) -> None:
    """Before the script's first line."""
    ended = _run(tmp_path, environment={"SPARK_REMOTE": "sc://localhost"})
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "Spark Connect" in stream.events(Failed)[0].error


def test_a_driver_that_is_not_current_leaves_everything_alone(tmp_path: Path, stream: Deployments) -> None:
    """Exit status 4, no event, the script never runs (Law 4)."""
    ended = _run(tmp_path, attempt=2)
    assert ended.returncode == 4, ended.stderr
    assert ended.stdout == ""
    assert stream.events(Claimed) == []


def test_checkpoints_elsewhere_are_refused_without_showing_secrets(tmp_path: Path, stream: Deployments) -> None:
    """Before the claim, and before there is a reporter."""
    ended = _run(tmp_path, checkpoints_uri="memory://hunter2-secret", secrets=["hunter2-secret"])
    assert ended.returncode == 1
    assert "folder of this machine" in ended.stderr
    assert "checkpoints_uri=memory://***" in ended.stderr
    assert stream.events(Claimed) == []


def test_a_process_that_is_ended_keeps_what_it_printed(tmp_path: Path) -> None:
    """Also while threads run."""
    script = tmp_path / "ends.py"
    script.write_text(
        "import threading, time\n"
        "from airflow_streamstate.driver.main import end_process\n"
        "print('kept', end='')\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "threading.Thread(target=end_process, args=(7,)).start()\n"
        "time.sleep(60)\n"
    )
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )
    assert (ended.returncode, ended.stdout) == (7, "kept")


def _rehearse(
    tmp_path: Path,
    script: str,
    seconds: float = 100.0,
    *,
    waits_seconds: float | None = None,
    status: int | None = None,
) -> tuple[ScratchVerdict, str]:
    """The verdict of a script that starts no Spark, and what it printed; ``status`` is that of a second pass."""
    stream = Deployments(tmp_path)
    stream.record("")
    rehearsal_id, now = "r-0b8e3c525f0e-0001", SYSTEM_CLOCK.now()
    until = None if waits_seconds is None else now + timedelta(seconds=waits_seconds)
    stream.control.create_scratch_run(
        ScratchRun(
            STREAM, rehearsal_id, "d-0001", Rehearsal(RehearsalTerms(True, 0), waits_until=until), now,
            now + timedelta(seconds=seconds), "test", "r", "0", "w",
        )
    )  # fmt: skip
    stream.control.create_spec(replace(stream.control.spec("d-0001"), deployment_id=rehearsal_id))
    ended = _run(tmp_path, script=script, deployment_id=rehearsal_id)
    verdict = stream.control.verdict(rehearsal_id)
    assert verdict is not None, ended.stderr
    assert ended.returncode == ((0 if verdict.outcome == "done" else 1) if status is None else status)
    assert list(stream.control.journal("d-0001").events()) == []
    return verdict, ended.stdout


def test_a_script_can_tell_that_it_is_rehearsed(tmp_path: Path) -> None:
    """By its environment; nothing is claimed."""
    verdict, out = _rehearse(tmp_path, "import os; print('rehearsed:', os.environ['STREAMSTATE_REHEARSAL'])")
    assert (verdict.outcome, verdict.queries, verdict.given_by) == ("done", {}, "driver")
    assert out == "rehearsed: 1\n"


def test_a_script_that_fails_in_its_rehearsal_is_told_in_its_own_words(tmp_path: Path) -> None:
    """A package that is missing is found before anything is stopped."""
    verdict, _ = _rehearse(tmp_path, "import no_such_package")
    assert (verdict.outcome, verdict.error) == ("failed", "ModuleNotFoundError: No module named 'no_such_package'")
    assert "import no_such_package" in verdict.traceback


def test_a_script_that_hangs_in_its_rehearsal_is_ended_by_its_own_driver(tmp_path: Path) -> None:
    """Without any controller (Law 6)."""
    verdict, _ = _rehearse(tmp_path, "import time; time.sleep(600)", seconds=1.0)
    assert (verdict.outcome, verdict.given_by) == ("deadline", "driver")


def test_a_driver_that_is_ordered_to_read_runs_no_script(tmp_path: Path) -> None:
    """It needs no record and no home; an order that is none is refused."""
    ended = _run(tmp_path, script="print('ran')", deployment_id="r-0b8e3c525f0e-0001", reading={"verb": "state"})
    assert (ended.returncode, ended.stdout) == (FAILED_STATUS, "")
    assert "the driver's order to read state is malformed" in ended.stderr


def test_a_rehearsal_that_nobody_recorded_is_refused(tmp_path: Path, stream: Deployments) -> None:
    """The script has not run."""
    ended = _run(tmp_path, deployment_id="r-0b8e3c525f0e-0001")
    assert (ended.returncode, ended.stdout) == (FAILED_STATUS, "")
    assert "there is no record of this scratch run" in ended.stderr


SURROUNDINGS = """
import os, sys
seen = os.environ.get("STREAMSTATE_REHEARSAL"), os.environ.get("MARK")
print(*seen, os.getcwd() == "/", "left" in globals(), sys.argv)
os.environ["MARK"], left = "set", True
os.environ.pop("HOME", None)
os.chdir("/")
del sys.argv[1:]
"""


def test_a_driver_that_is_to_wait_runs_its_script_twice(tmp_path: Path) -> None:
    """First rehearsed, then as if for the first time; a script that starts no query simply ends."""
    _, out = _rehearse(tmp_path, SURROUNDINGS, waits_seconds=100.0)
    words = f"None False False ['{tmp_path}/job.py', 'x']\n"
    assert out == f"1 {words}None {words}"


def test_a_second_pass_that_fails_has_its_own_status(tmp_path: Path) -> None:
    """The verdict is that of the first."""
    script = "import os, sys\nsys.exit(0 if 'STREAMSTATE_REHEARSAL' in os.environ else 7)"
    verdict, _ = _rehearse(tmp_path, script, waits_seconds=100.0, status=7)
    assert verdict.is_accepted


def test_a_second_pass_that_comes_to_no_start_is_ended_in_time(tmp_path: Path) -> None:
    """With status 0 (Law 6)."""
    script = "import os, time\nprint('pass')\nif 'STREAMSTATE_REHEARSAL' not in os.environ: time.sleep(600)"
    verdict, out = _rehearse(tmp_path, script, waits_seconds=8.0)
    assert verdict.is_accepted
    assert out == "pass\npass\n"


def test_what_was_not_accepted_does_not_wait(tmp_path: Path) -> None:
    """Its driver ends with its verdict, as ever."""
    verdict, out = _rehearse(tmp_path, "print('once')\nraise ValueError('no')", waits_seconds=100.0)
    assert (verdict.outcome, out) == ("failed", "once\n")


def test_a_home_of_an_earlier_checkout_is_refused(tmp_path: Path) -> None:
    """Whatever launched the driver: it claims nothing, and its script does not run. (Law 7)"""
    with earlier_home(tmp_path / "home"):
        done = _run(tmp_path, script="print('it ran')", stream_id=STREAM_THERE, attempt=2)
    assert done.returncode == FAILED_STATUS
    assert WORDS in done.stderr
    assert "it ran" not in done.stdout
