"""The shell's verbs over real ``spark-submit``: whole lives, scripts that are no good, secrets, damaged snapshots."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.protocol import layout
from support.drivers import CONF, seconds_of
from support.file_sink import rows_in
from support.launches import wait_until
from support.progress import files_read
from support.shell import Answer, Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

SECRET = "tr0ub4dor-and-3"
URL_SECRET = "c0rrect-horse"
CONF_SECRET = "battery-staple-9"
SECRETS = (SECRET, URL_SECRET, CONF_SECRET)
SECRET_CONF = ("--conf", f"spark.hadoop.fs.s3a.secret.key={CONF_SECRET}")
SECRET_ARGUMENTS = ("--password", SECRET, f"--source=jdbc://ada:{URL_SECRET}@host/db")
QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
WAIT = ("--timeout", 200)

FAILS_BEFORE_ITS_FIRST_QUERY = """
import sys

def connect(password):
    raise RuntimeError("cannot log in with " + password)

connect(sys.argv[2])
"""
HAS_NO_QUERY = """
from pyspark.sql import SparkSession
print("rows:", SparkSession.builder.getOrCreate().range(3).count())
"""
NEVER_COMMITS = """
import time
from pyspark.sql import SparkSession

rows = SparkSession.builder.getOrCreate().readStream.format("rate").load()
rows.writeStream.queryName("slow").foreachBatch(lambda batch, batch_id: time.sleep(600)).start().awaitTermination()
"""
SOMEBODY_ELSES = '''
"""Written by somebody who never heard of streamstate."""
import json
import os
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

base = sys.argv[1]
spark = SparkSession.builder.appName("mine").getOrCreate()


class Parity:
    names = {0: "even", 1: "odd"}

    def of(self, number):
        return self.names[number % 2]


parity = F.udf(lambda number: Parity().of(number))
rows = spark.readStream.schema("t timestamp, v int").option("maxFilesPerTrigger", 1).json(base + "/in")


def keep(batch, batch_id):
    found = [row.v for row in batch.select("v").collect()]
    with open(f"{base}/raw-{batch_id}.json.new", "w") as file:
        json.dump(found, file)
    os.replace(file.name, f"{base}/raw-{batch_id}.json")


raw = rows.writeStream.foreachBatch(keep).option("checkpointLocation", base + "/mine/raw").start()
windows = rows.withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), parity("v").alias("k"))
counts = (
    windows.agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    .writeStream.format("json")
    .option("path", base + "/out")
    .option("checkpointLocation", base + "/mine/counts")
    .trigger(processingTime="100 milliseconds")
    .start()
)
while raw.isActive and counts.isActive:
    time.sleep(0.2)
print("my own loop has ended")
'''


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, the machine's own ``spark-submit``, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


def script(desk: Desk, text: str, name: str = "job.py") -> Path:
    """A script of somebody's."""
    path = desk.base / name
    path.write_text(text)
    return path


def command_lines() -> str:
    """The command line of every process of this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((folder / "cmdline").read_text("utf-8", "replace"))
        except OSError:
            continue  # it has ended
    return "\n".join(found)


def secrets_in(text: str) -> list[str]:
    """Which of the secrets a text holds."""
    return [secret for secret in SECRETS if secret in text]


def test_scripts_that_are_no_good_and_secrets_that_stay_secret(desk: Desk) -> None:
    """No script, none that starts, none with a query, none that commits: each is reported; no secret shows anywhere."""
    missing = shell("deploy", "missing", "--app", desk.base / "nosuch.py", "--json", "--async")
    assert (missing.status, missing.error["type"]) == (2, "InvalidRequestError")
    common = ("--master", "local[2]", *QUICK, *SECRET_CONF, "--allow-literal-secrets", "--json", "--reason", "tests")
    apps = {"slow": NEVER_COMMITS, "no-query": HAS_NO_QUERY, "fails": FAILS_BEFORE_ITS_FIRST_QUERY}
    words: dict[str, tuple[object, ...]] = {}
    for name, text in apps.items():
        words[name] = ("--app", script(desk, text, f"{name}.py"), *common, "--request-id", f"{name}-1")
        answer = shell(
            "deploy", name, *words[name], *(WAIT if name == "fails" else ("--async",)), "--", *SECRET_ARGUMENTS
        )
        if name != "fails":
            assert (answer.status, answer.json["state"]) == (0, "launching"), answer
        assert secrets_in(answer.out + answer.err) == []
    failed = answer
    assert (failed.status, failed.error["type"]) == (1, "DeploymentFailedError"), failed
    context = failed.error["context"]
    assert context["error"].startswith("RuntimeError: cannot log in with")
    assert 'raise RuntimeError("cannot log in with " + password)' in context["traceback"]
    assert "airflow_streamstate" not in context["traceback"]
    assert "RuntimeError" in context["log_tail"]
    assert len(context["log_tail"].splitlines()) > 1

    ended = shell("deploy", "no-query", *words["no-query"], *WAIT, "--", *SECRET_ARGUMENTS)
    assert (ended.status, ended.json["state"], ended.json["queries"]) == (0, "finished", {}), ended
    assert "without starting a query" in shell("status", "no-query").out
    assert "rows: 3" in shell("logs", "no-query").out

    slow = wait_for_state("slow", "running")
    assert slow.json["queries"].get("slow", {}).get("batch_id") is None
    late = shell("deploy", "slow", *words["slow"], "--timeout", 2, "--", *SECRET_ARGUMENTS)
    assert (late.status, late.error["type"]) == (3, "DeadlineExceededError"), late
    assert "the work continues" in late.error["message"]
    assert wait_for_state("slow", "running").json["attempt"] == 1
    assert secrets_in(command_lines()) == []

    shown = [shell(verb, name) for name in apps for verb in ("status", "events", "logs")]
    shown += [shell(verb, name, "--json") for name in apps for verb in ("status", "events", "logs")]
    shown += [missing, failed, ended, late, shell("list", "--json"), shell("kill", "slow", "--grace", 0)]
    assert [secrets_in(answer.out + answer.err) for answer in shown if secrets_in(answer.out + answer.err)] == []
    holders = {path for path, text in desk.texts().items() if secrets_in(text)}
    own_output = {path for path in holders if path.startswith("fails/") and path.endswith("driver.log")}
    allowed = {path for path in holders if path.endswith("/spec.json") or "/launches/" in path}
    assert holders - allowed == set()
    logs = {path for path in allowed if path.endswith("driver.log")} - own_output
    assert logs == set()  # what the script prints itself is its own; else no log holds a secret
    in_launches = [desk.home / path for path in allowed if "/launches/" in path]
    assert [str(path) for path in in_launches if path.stat().st_mode & 0o077] == []


def wait_for_state(stream_id: str, state: str) -> Answer:
    """The status once it is so."""
    found: list[Answer] = []

    def is_so() -> bool:
        found.append(shell("status", stream_id, "--json"))
        return found[-1].json["state"] == state

    wait_until(is_so, f"{stream_id} {state}", 200)
    return found[-1]


class Mine:
    """The input and the output of ``SOMEBODY_ELSES``, and what is done to its stream by the shell."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.app = script(desk, SOMEBODY_ELSES)
        self.fed: list[int] = []
        self.files = 0
        (desk.base / "in").mkdir()

    def feed(self, count: int) -> None:
        """One more file of ``count`` rows, each a second later than the one before."""
        rows = range(len(self.fed), len(self.fed) + count)
        hidden = self.desk.base / "in" / f".{self.files:05d}"
        hidden.write_text("".join(json.dumps({"t": seconds_of(row // 60, row % 60), "v": row}) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + self.files,) * 2)
        hidden.rename(self.desk.base / "in" / f"{self.files:05d}.json")
        self.files += 1
        self.fed += rows

    def raw(self) -> list[int]:
        """What ``foreachBatch`` kept, by its own files, one per batch."""
        return sorted(value for path in self.desk.base.glob("raw-*.json") for value in json.loads(path.read_text()))

    def counts(self) -> Counter[str]:
        """Rows and sums per key that the file sink has committed."""
        total: Counter[str] = Counter()
        for row in rows_in(self.desk.base / "out"):
            total[f"{row['k']} rows"] += row["n"]
            total[f"{row['k']} sum"] += row["s"]
        return total

    def expected(self) -> Counter[str]:
        """The same, from what was fed."""
        total: Counter[str] = Counter()
        for value in self.fed:
            name = ("even", "odd")[value % 2]
            total += Counter({f"{name} rows": 1, f"{name} sum": value})
        return total

    def deploy(self) -> Answer:
        words = ("--app", self.app, "--master", "local[2]", *QUICK, *WAIT, "--json", "--", self.desk.base)
        return shell("deploy", "mine", *words)

    def wait_for_both(self) -> None:
        """Wait until both queries have committed a batch: a deploy waits for those that the script has started by then.

        It starts one after the other, and the first may be healthy before the second has started.
        """

        def are_there() -> bool:
            queries = shell("status", "mine", "--json").json["queries"]
            batches = {name: query["batch_id"] for name, query in queries.items()}
            return set(batches) == {"raw", "counts"} and None not in batches.values()

        wait_until(are_there, "a batch of both queries", 120)

    def wait_read(self) -> None:
        """Wait until both queries have taken all that was fed."""
        deployments = self.desk.home / "mine" / "deployments"

        def taken() -> bool:
            status = shell("status", "mine", "--json").json
            counts = deployments / status["deployment_id"] / "checkpoints" / "counts"
            return self.raw() == self.fed and files_read(counts) == self.files

        wait_until(taken, "all that was fed to be read", 120)


def replaced(path: Path, body: bytes) -> None:
    """Other bytes under this name; hard links of it keep theirs."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(body)
    fresh.replace(path)


def check_damaged_snapshots(mine: Mine, snapshot_id: str) -> None:
    """One byte flipped, one file gone: verify names it, deploy refuses, and nothing has moved."""
    data = mine.desk.home / "mine" / "snapshots" / snapshot_id / "data" / "counts"
    state = next(path for path in sorted(data.glob("state/0/*/*.delta")) if path.stat().st_size > 50)
    for path in (max(data.glob("offsets/[0-9]*")), state):
        body = path.read_bytes()
        replaced(path, bytes([*body[:20], body[20] ^ 1, *body[21:]]))
        found = shell("snapshot", "verify", "mine", snapshot_id, "--json")
        assert (found.status, found.json["ok"]) == (1, False)
        assert [(row["kind"], row["query"], row["path"]) for row in found.json["problems"]] == [
            ("altered", "counts", str(path.relative_to(data)))
        ]
        if path is not state:
            refused = mine.deploy()
            assert (refused.status, refused.error["type"]) == (1, "SnapshotCorruptError"), refused
            assert refused.error["context"]["path"] == str(path.relative_to(data))
        path.unlink()
        found = shell("snapshot", "verify", "mine", snapshot_id, "--json")
        assert [(row["kind"], row["path"]) for row in found.json["problems"]] == [
            ("missing", str(path.relative_to(data)))
        ]
        refused = mine.deploy()
        assert (refused.status, refused.error["type"]) == (1, "SnapshotIncompleteError"), refused
        replaced(path, body)
    assert shell("snapshot", "verify", "mine", snapshot_id).status == 0
    assert shell("status", "mine", "--json").json["deployment_id"] == "d-0001"


def check_missing_manifest(mine: Mine, snapshot_id: str) -> None:
    """Without its manifest a drained snapshot is none, and nothing starts from anything else (Laws 3 and 5)."""
    path = mine.desk.home / layout.manifest_key("mine", snapshot_id)
    body = path.read_bytes()
    path.unlink()
    for answer in (shell("snapshot", "verify", "mine", snapshot_id, "--json"), mine.deploy()):
        assert (answer.status, answer.error["type"]) == (2, "SnapshotNotFoundError"), answer
    replaced(path, body)


@pytest.mark.named
def test_a_script_that_was_never_meant_for_us_lives_by_the_shell(desk: Desk) -> None:
    """Two queries, foreachBatch, own checkpoints, pickled classes, a loop over isActive: rows in = rows out (1a.11)."""
    mine = Mine(desk)
    mine.feed(20)
    mine.feed(20)
    first = mine.deploy()
    assert first.status == 0, first
    assert first.json["start"]["mode"] == "fresh"
    assert set(first.json["queries"]) <= {"raw", "counts"}
    mine.wait_for_both()
    kept = shell("snapshot", "create", "mine", "--timeout", 60, "--json")
    assert kept.status == 0, kept
    assert kept.json["kind"] == "live"
    assert kept.json["files"] > 10
    assert set(kept.json["queries"]) == {"raw", "counts"}
    assert shell("snapshot", "verify", "mine", kept.json["snapshot_id"]).status == 0
    mine.feed(20)
    stopped = shell("stop", "mine", *WAIT, "--json")
    assert (stopped.status, stopped.json["state"]) == (0, "stopped"), stopped
    assert set(stopped.json["queries"]["counts"]) >= {"batch_id", "state_rows_left"}
    wait_until(lambda: "my own loop has ended" in shell("logs", "mine").out, "the script's own end")
    snapshot_id = stopped.json["snapshot_id"]
    check_damaged_snapshots(mine, snapshot_id)

    mine.feed(20)
    second = mine.deploy()
    assert second.status == 0, second
    assert second.json["start"]["mode"] == "restore"
    assert second.json["start"]["snapshot_id"] == snapshot_id
    mine.wait_read()
    drained = shell("drain", "mine", *WAIT, "--json")
    assert (drained.status, drained.json["state"]) == (0, "drained"), drained
    assert drained.json["queries"]["counts"]["state_rows_left"] == 0
    assert drained.json["queries"]["counts"]["rows_written_early"] > 0
    assert mine.counts() == mine.expected()
    check_missing_manifest(mine, drained.json["snapshot_id"])

    mine.feed(20)
    third = mine.deploy()
    assert third.status == 0, third
    assert third.json["start"]["mode"] == "seed"
    mine.feed(20)
    killed = shell("kill", "mine", "--grace", 0, "--json")
    assert (killed.status, killed.json["state"]) == (0, "failed"), killed
    resumed = shell("resume", "mine", *WAIT, "--json")
    assert resumed.status == 0, resumed
    assert (resumed.json["deployment_id"], resumed.json["attempt"]) == ("d-0003", 2)
    mine.feed(20)
    mine.wait_read()
    assert shell("drain", "mine", *WAIT).status == 0
    assert mine.raw() == mine.fed
    assert mine.counts() == mine.expected()
    rows = shell("list", "--json").json["streams"]
    assert [(row["stream_id"], row["state"], row["deployment_id"]) for row in rows] == [("mine", "drained", "d-0003")]
    audit = shell("audit", "mine", "--json")
    assert (audit.status, audit.json["gaps"], audit.json["overlaps"]) == (0, [], []), audit
