"""One run of the same script over the same input, with us or bare, and samples of its CPU while it works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.processes import ProcessStat, all_processes, send_signal
from airflow_streamstate.launch.spark_home import own_spark_submit, python_environment
from benchmarks.cpu import CpuSample, python_of_session, sample
from benchmarks.results import BenchmarkError
from benchmarks.streams import CONF, JOBS, MASTER, POLL_SECONDS

if TYPE_CHECKING:
    from typing_extensions import Self


class PlainJob(Protocol):
    """A script without us; as a context manager it ends all of it."""

    def __enter__(self) -> Self:
        """The job."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what still runs."""

    def wait(self, is_there: Callable[[], bool], what: str, seconds: float) -> None:
        """As ``Running.wait``."""

    def stop(self, seconds: float) -> None:
        """End it as its operator does, and wait until nothing of it is left."""


class BareRun:
    """A script under plain ``spark-submit``, in a separate session; as a context manager it ends all of it.

    Args:
        script: of ``jobs/``.
        spark_words: more options of ``spark-submit``.
        environment: of the job, in addition to ours, which may name another Spark.
    """

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        log_path: Path,
        spark_words: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log_path = log_path
        environ = {**os.environ, **(environment or {}), "SPARK_LOCAL_IP": "127.0.0.1"}
        submit = own_spark_submit(environ)
        environ |= submit.environment
        environ |= python_environment(environ, on_this_machine=True)
        conf = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*submit.prefix, "--master", MASTER, *conf, *spark_words, str(JOBS / script), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environ, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stat in self._living():
            send_signal(stat, signal.SIGKILL)
        self._process.wait(timeout=30)

    def session_id(self) -> int | None:
        """Its leader's pid."""
        return self._process.pid

    def python_pid(self) -> int | None:
        """The process that runs the script; None before it has started."""
        return python_of_session(self._process.pid)

    def wait(self, is_there: Callable[[], bool], what: str, seconds: float) -> None:
        """As ``Running.wait``."""
        until = SYSTEM_CLOCK.monotonic_seconds() + seconds
        while not is_there():
            if self._process.poll() not in (None, 0) or SYSTEM_CLOCK.monotonic_seconds() > until:
                raise BenchmarkError(f"{what} never was there\n{self._log_path.read_text(errors='replace')[-4000:]}")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def stop(self, seconds: float) -> None:
        """End it as ``kill`` does, and wait until none of its processes is left."""
        self._process.terminate()
        until = SYSTEM_CLOCK.monotonic_seconds() + seconds
        while self._process.poll() is None or self._living():
            if SYSTEM_CLOCK.monotonic_seconds() > until:
                raise BenchmarkError(f"the bare run did not end in {seconds:.0f} s")
            SYSTEM_CLOCK.sleep(POLL_SECONDS)

    def _living(self) -> list[ProcessStat]:
        return [stat for stat in all_processes() if stat.session_id == self._process.pid and stat.is_alive]

    def wait_finished(self, seconds: float) -> None:
        """Wait until the script has ended with status 0."""
        self.wait(lambda: self._process.poll() == 0, "the end of the bare run", seconds)


class StoppedByItself(BareRun):
    """A script whose operator has it call ``query.stop()``, and waits for its end; arguments as ``BareRun``."""

    def __init__(self, script: str, arguments: Sequence[str], log_path: Path, *more: Any, **named: Any) -> None:
        self._stop_path = log_path.with_suffix(".stop")
        words = (*arguments, "--stops-once-there-is", str(self._stop_path))
        super().__init__(script, words, log_path, *more, **named)

    def stop(self, seconds: float) -> None:
        """End it, and wait until it has ended with status 0."""
        self._stop_path.touch()
        self.wait_finished(seconds)


@dataclass(frozen=True)
class Window:
    """Two looks at a driver, at the commits of two batches."""

    before: CpuSample
    after: CpuSample

    @property
    def seconds(self) -> float:
        """From the one to the other."""
        return self.after.at_seconds - self.before.at_seconds


def watch(
    session_id: int, python_pid: int, commits: Path, first_batch_id: int, last_batch_id: int, seconds: float
) -> Window:
    """Sample a driver at the commits of two batches.

    Raises:
        BenchmarkError: the last batch was not committed in ``seconds``.
    """
    until = SYSTEM_CLOCK.monotonic_seconds() + seconds
    before: CpuSample | None = None
    while SYSTEM_CLOCK.monotonic_seconds() < until:
        if before is None and (commits / str(first_batch_id)).exists():
            before = sample(session_id, python_pid)
        if before is not None and (commits / str(last_batch_id)).exists():
            return Window(before, sample(session_id, python_pid))
        SYSTEM_CLOCK.sleep(POLL_SECONDS)
    raise BenchmarkError(f"batch {last_batch_id} was not committed after {seconds:.0f} s")


def rows_per_second(reports_path: Path, first_batch_id: int) -> float:
    """Rows per second from Spark's own reports, from the start of one batch to the end of the last one with input."""
    reports = [
        report
        for report in json.loads(reports_path.read_text(encoding="utf-8"))
        if report["batchId"] >= first_batch_id and report["numInputRows"] > 0
    ]
    if not reports:
        raise BenchmarkError(f"Spark reported no batch with input from batch {first_batch_id} on")
    began = datetime.fromisoformat(reports[0]["timestamp"])
    last = datetime.fromisoformat(reports[-1]["timestamp"])
    seconds = (last - began).total_seconds() + reports[-1]["durationMs"]["triggerExecution"] / 1000
    return float(sum(report["numInputRows"] for report in reports) / seconds)
