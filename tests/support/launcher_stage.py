"""The local launcher as a stage of its conformance suite: without Spark, or on a real one with a real master."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.launch.folder import HANDLE
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.launch.spark_home import own_pyspark
from support.launches import fake_spark_submit

TESTS = Path(__file__).resolve().parents[1]
WITHOUT_SPARK = f'exec {sys.executable} "$PROGRAM"'
# What our runner would run is another program here; all else of the command is as it is.
WITH_SPARK = """
for word in "$@"; do
    shift
    case "$word" in */runner.py) word=$PROGRAM;; esac
    set -- "$@" "$word"
done
export SPARK_HOME="{home}"
exec "$SPARK_HOME/bin/spark-submit" "$@"
"""


class LocalStage:
    """As ``LauncherStage``.

    Args:
        master: Spark's master; "" for drivers without Spark.
    """

    patience_seconds = 180.0

    def __init__(self, base: Path, master: str = "", conf: Mapping[str, str] | None = None, prelude: str = "") -> None:
        self.clock: Clock = SYSTEM_CLOCK
        self.base = base
        self.folder = base / "said"
        self.folder.mkdir()
        self._master = master
        self._conf = dict(conf or {})
        self._prelude = prelude
        body = WITH_SPARK.format(home=own_pyspark()) if master else WITHOUT_SPARK
        self._spark_submit = fake_spark_submit(base, body)

    def launcher(self) -> LocalLauncher:
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        return LocalLauncher(SYSTEM_CLOCK, environ=environ)

    def request(self, launch_key: str, program: str) -> LaunchRequest:
        path = self.base / f"{launch_key}.py"
        path.write_text(self._prelude + program)
        folder = self.base / "launches" / launch_key
        return LaunchRequest(
            launch_key=launch_key,
            application=str(path),
            master=self._master or "local[1]",
            conf=self._conf,
            folder=str(folder),
            log_path=str(folder / "driver.log"),
            spark_submit=(self._spark_submit,),
            environment={"PROGRAM": str(path), "PYTHONUTF8": "1"},
        )

    def impossible_request(self, launch_key: str) -> LaunchRequest:
        raw = self.request(launch_key, "").to_json()
        return LaunchRequest.from_json({**raw, "jars": [str(self.base / "nosuch.jar")]})

    def launch_and_die(self, request: LaunchRequest) -> None:
        with subprocess.Popen(
            [sys.executable, str(TESTS / "support" / "launch_once.py"), json.dumps(request.to_json()), "linger"],
            stdout=subprocess.PIPE,
            env={**self.launcher()._inherited(), "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            os.killpg(process.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def out_of_reach(self, handle: LaunchHandle) -> Iterator[LaunchHandle]:
        """On another machine, as far as the launch's record says."""
        record = Path(str(handle.data["folder"])) / HANDLE
        kept = record.with_suffix(".kept")
        record.rename(kept)  # the lock stays on the file that the driver holds
        elsewhere = {**handle.data, "host": "elsewhere", "boot_id": "another"}
        record.write_text(json.dumps(elsewhere))
        try:
            yield LaunchHandle(handle.launcher, handle.launch_key, elsewhere)
        finally:
            kept.replace(record)
