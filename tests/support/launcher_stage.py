"""The local launcher as a stage of its conformance suite: without Spark, or on a real one with a real master."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.launch.folder import HANDLE
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.launch.spark_home import own_pyspark
from support.launches import fake_spark_submit, launch_and_die, living_processes

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
        return LocalLauncher(SYSTEM_CLOCK, environ=self.environ())

    def environ(self) -> dict[str, str]:
        """What drivers and their callers inherit."""
        return {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}

    def request(self, launch_key: str, program: str, scope: str = "") -> LaunchRequest:
        folder = self.base / "launches" / scope[-1:] / launch_key
        path = self.base / f"{scope[-1:]}{launch_key}.py"
        path.write_text(self._prelude + program)
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

    def lacking_request(self, launch_key: str) -> LaunchRequest:
        """Spark finds out only when it resolves it; if there is no Spark, the shell of the driver does."""
        request = self.request(launch_key, "")
        if self._master:
            return replace(request, packages=("org.example:nosuch:1.0",))
        lacking = fake_spark_submit(
            self.base, "echo 'unresolved dependency: org.example#nosuch: not found'; exit 1", "lacking-submit"
        )
        return replace(request, spark_submit=(lacking,))

    def roomless_request(self, launch_key: str) -> LaunchRequest:
        raise NotImplementedError("see the limits of the launcher")

    def shown(self, handle: LaunchHandle) -> str:
        """The command lines of all processes, and what others may read in the folder of the launch."""
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        files = [path for path in Path(str(handle.data["folder"])).rglob("*") if path.is_file()]
        lines += [path.read_bytes() for path in files if path.stat().st_mode & 0o077]
        return b"\n".join(lines).decode("utf-8", "replace")

    def left_behind(self) -> list[str]:
        folders = [path.parent for path in self.base.glob("launches/**/intent.json")]
        return [f"pid {process.pid}" for folder in folders for process in living_processes(str(folder))]

    def launch_and_die(self, request: LaunchRequest) -> None:
        launch_and_die(request, self.environ())

    @contextlib.contextmanager
    def out_of_reach(self, handle: LaunchHandle) -> Iterator[LaunchHandle]:
        """On another machine, as far as the launch's record shows."""
        record = Path(str(handle.data["folder"])) / HANDLE
        kept = record.with_suffix(".kept")
        record.rename(kept)  # the lock stays on the file that the driver holds
        elsewhere = {**handle.data, "host": "elsewhere", "boot_id": "another"}
        record.write_text(json.dumps(elsewhere))
        try:
            yield LaunchHandle(handle.launcher, handle.launch_key, elsewhere)
        finally:
            kept.replace(record)
