"""The local launcher over real ``spark-submit``: what reaches the driver, what nobody sees, the end of all of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.launch.processes import has_in_environment
from airflow_streamstate.launch.spark_home import own_pyspark
from support.launches import living_processes, nothing_left_behind, wait_for_end, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SECRET = "tr0ub4dor-and-3"
AWKWARD = "v w = x : y # z ! \\ \\n é€😀 \"q\" 'r' $HOME a,b"
CONF = {
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": '-XX:TieredStopAtLevel=1 -Dprobe="a b=c"',
    "spark.sql.shuffle.partitions": "2",
    "spark.test.awkward": AWKWARD,
    "spark.test.lines": "one\ntwo\n",
    "spark.test.empty": "",
    "spark.test.secret": SECRET,
}

REPORT = """
import json, os, sys
with open(sys.argv[2]) as file:
    config = json.load(file)
import airflow_streamstate.protocol.codec
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
jvm = spark._jvm.java.lang
import more
report = {
    "conf": {key: spark.conf.get(key) for key in config["keys"]},
    "probe": jvm.System.getProperty("probe"),
    "heap_bytes": jvm.Runtime.getRuntime().maxMemory(),
    "arguments": config["arguments"],
    "launch_key": config["launch_key"],
    "application": config["application"],
    "name": spark.sparkContext.appName,
    "ui": spark.sparkContext.uiWebUrl,
    "host": spark.conf.get("spark.driver.host"),
    "package": airflow_streamstate.protocol.codec.__file__,
    "python": sys.executable,
    "workers": spark.sparkContext.parallelize([1], 1).map(lambda _: (more.ANSWER, sys.executable)).collect(),
    "command_lines": [],
}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            report["command_lines"].append(file.read().decode("utf-8", "replace"))
    except OSError:
        pass
with open(config["report"], "w") as file:
    json.dump(report, file)
sys.exit(7)
"""

SLEEP = """
import os, signal, sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()

def work(_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(os.environ["BUSY"], "a").write("worker\\n")
    time.sleep(600)

spark.sparkContext.parallelize([1, 2], 2).map(work).collect()
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    """The local launcher, and nothing left of its drivers afterwards."""
    with nothing_left_behind(tmp_path):
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
        yield LocalLauncher(SYSTEM_CLOCK, environ=environ)


def request_of(base: Path, runner: str, **changes: object) -> LaunchRequest:
    """A request whose SPARK_HOME runs another runner than ours, and is else the real one."""
    home = base / "spark home"
    (home / "bin").mkdir(parents=True)
    (base / "other-runner.py").write_text(runner)
    real = own_pyspark()
    submit = home / "bin" / "spark-submit"
    submit.write_text(
        "#!/bin/bash\n"
        f'words=(); for word in "$@"; do case "$word" in */runner.py) word=\'{base}/other-runner.py\';; esac; '
        'words+=("$word"); done\n'
        f'export SPARK_HOME="{real}"\n'
        'exec "$SPARK_HOME/bin/spark-submit" "${words[@]}"\n'
    )
    submit.chmod(0o755)
    application = base / "job.py"
    application.write_text("")
    folder = base / "launches" / "ünd so on" / "d-0001-a0001"
    values: dict[str, object] = {
        "launch_key": "d-0001-a0001",
        "application": str(application),
        "master": "local[2]",
        "folder": str(folder),
        "log_path": str(folder / "driver.log"),
        "environment": {"SPARK_HOME": str(home), "BUSY": str(base / "busy")},
    }
    return LaunchRequest(**{**values, **changes})  # type: ignore[arg-type]


def test_what_is_asked_for_reaches_the_driver_and_nobody_else(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Configuration of any text, arguments and py-files arrive; memory and Java options work; no secret shows."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "more.py").write_text("ANSWER = 42\n")
    report_path = tmp_path / "report.json"
    request = request_of(
        tmp_path,
        REPORT,
        arguments=("--password", SECRET, "c d"),
        conf=CONF,
        py_files=(str(tmp_path / "lib" / "more.py"),),
        driver_config={"keys": sorted(CONF), "report": str(report_path)},
    )
    handle = launcher.launch(request)
    status = wait_for_end(launcher, handle, 200)
    assert status.exit_code == 7, launcher.logs(handle, 10_000)
    report = json.loads(report_path.read_text())
    conf = report.pop("conf")
    # Spark puts module options of its own before the user's.
    assert conf.pop("spark.driver.extraJavaOptions").endswith(CONF["spark.driver.extraJavaOptions"])
    assert conf == {key: value for key, value in CONF.items() if key != "spark.driver.extraJavaOptions"}
    assert [line for line in report.pop("command_lines") if SECRET in line] == []
    assert report.pop("package").startswith(request.folder)
    assert report == {
        "probe": "a b=c",
        "heap_bytes": 600 << 20,
        "arguments": ["--password", SECRET, "c d"],
        "launch_key": "d-0001-a0001",
        "application": request.application,
        "name": "job.py",
        "ui": None,
        "host": "localhost",
        "python": sys.executable,
        "workers": [[42, sys.executable]],
    }


def test_kill_ends_java_python_daemon_and_workers(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Of a driver whose workers sleep and ignore SIGTERM nothing is left, and its end is reported."""
    request = request_of(tmp_path, SLEEP, conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    handle = launcher.launch(request)
    busy = tmp_path / "busy"
    wait_until(lambda: busy.exists() and len(busy.read_text().splitlines()) == 2, "two busy workers", 200)
    before = living_processes(request.folder)
    marker = f"STREAMSTATE_LAUNCH_FOLDER={request.folder}"
    assert len(before) >= 6  # shell, java, python, daemon, two workers
    assert len({process.group_id for process in before}) > 1
    assert len({process.session_id for process in before}) == 1
    assert all(has_in_environment(process.pid, marker) for process in before)
    status = launcher.kill(handle, 30.0)
    assert status.has_ended
    assert status.exit_code in (143, 137)
    assert living_processes(request.folder) == []
