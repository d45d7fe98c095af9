"""What a cluster shows of a stream, and what it lacks for one."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from airflow_streamstate.launch.processes import all_processes
from support.cluster import Cluster
from support.cluster_stream import COUNTS, WAIT, ClusterStream
from support.drivers import wait_until
from support.shell import Desk, shell

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SECRETS = ("tr0ub4dor-and-3", "c0rrect-horse", "battery-staple-9", "hunter-2-hunter")
SECRET_CONF = {
    "spark.hadoop.fs.s3a.secret.key": "env://CLUSTER_SECRET_0",
    "spark.hadoop.fs.s3a.bucket.mine.session.token": "env://CLUSTER_SECRET_1",
    "spark.executorEnv.DATABASE_PASSWORD": "env://CLUSTER_SECRET_2",
}


def command_line(pid: int) -> str:
    """Program and arguments of a process; "" of one that has ended."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text("utf-8", "replace")
    except OSError:
        return ""


def test_no_secret_shows_on_a_cluster(desk: Desk, shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 credentials and arguments reach executors; on no command line, on no page of master and workers, and in no
    log of theirs is one to be seen."""
    for number, secret in enumerate(SECRETS):
        monkeypatch.setenv(f"CLUSTER_SECRET_{number}", secret)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[3])
    stream = ClusterStream(desk, shared_cluster)
    stream.rows.feed()
    # The value, not the reference to it, is what executors have.
    given = f'    assert len(os.environ["DATABASE_PASSWORD"]) == {len(SECRETS[2])}\n'
    told = COUNTS.replace("    import library  # of", f"{given}    import library  # of")
    words = stream.deploy_words(told, **SECRET_CONF)
    answer = shell(*words, *WAIT, "--json", "--", desk.base, "--password", "env://CLUSTER_SECRET_1")
    assert answer.status == 0, f"{answer}\n{stream.log()}"
    application_id = stream.status()["application_id"]

    def executors() -> list[str]:
        found = [command_line(member.pid) for worker in shared_cluster.workers for member in worker.members()]
        return [line for line in found if "CoarseGrainedExecutorBackend" in line and application_id in line]

    wait_until(lambda: len(executors()) == 2, lambda: f"two executors: {executors()}", 120)
    lines = {process.pid: command_line(process.pid) for process in all_processes()}
    assert [line for line in lines.values() for secret in SECRETS if secret in line] == []
    pages = shared_cluster.pages(application_id)
    assert sum("logPage" in address for address in pages) >= 4
    assert [address for address, page in pages.items() for secret in SECRETS if secret in page] == []
    logs = [path for path in shared_cluster.folder.glob("worker-*/app-*/*/std*") if path.is_file()]
    assert any("CoarseGrainedExecutorBackend" in path.read_text("utf-8", "replace") for path in logs)
    daemons = [*shared_cluster.folder.glob("*.log"), *logs]
    assert [path for path in daemons for secret in SECRETS if secret in path.read_text("utf-8", "replace")] == []
    shown = "".join(
        shell(verb, stream.name, *more).out for verb in ("status", "events", "logs") for more in ((), ("--json",))
    )
    assert [secret for secret in SECRETS if secret in shown + answer.out + answer.err] == []
    assert stream.order("stop")["outcome"] == "stopped"


def test_workers_without_the_python_of_the_job_are_told(desk: Desk, shared_cluster: Cluster) -> None:
    """A python that is not there on the workers ends the query, and the answer names it."""
    stream = ClusterStream(desk, shared_cluster)
    stream.rows.feed()
    nowhere = str(desk.base / "nosuch" / "python3")
    pythons = {"spark.pyspark.driver.python": sys.executable, "spark.pyspark.python": nowhere}
    words = stream.deploy_words(COUNTS, **pythons, **{"spark.task.maxFailures": "1"})
    answer = shell(*words, *WAIT, "--json", "--", desk.base)
    assert (answer.status, answer.error["type"]) == (1, "DeploymentFailedError"), answer
    assert nowhere in str(answer.error["context"])
    stream.deployment_id = answer.error["context"]["deployment_id"]
    assert stream.files_read() == 0
    assert stream.rows.found() == Counter()
