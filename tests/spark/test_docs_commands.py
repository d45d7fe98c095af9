"""Every command line of the docs is run: in a life of a stream here, by the tutorial's test, or its need is named."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.docs_commands import lines_of
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = "count_by_origin.py --label v1 --master 'local[2]' --conf spark.ui.enabled=false"
IN_AND_OUT = "-- --input /data/in --output /data/out"
LIFE = (
    f"deploy flights --app {SCRIPTS} {IN_AND_OUT}",
    "status flights --json",
    "status flights",
    "logs flights",
    "list",
    "snapshot create flights",
    "snapshot create flights --request-id nightly-2026-11-21 --ttl 600 --timeout 900",
    "FEED",
    "snapshot create flights",
    "FEED",
    "snapshot create flights",
    "FEED",
    "snapshot create flights",
    "snapshot list flights",
    "snapshot list flights --json",
    "snapshot inspect flights",
    "snapshot inspect flights --snapshot d-0001-live-000004 --query delays",
    """snapshot inspect flights --key '{"origin": "ATL"}' --limit 5""",
    """snapshot inspect flights --key '{"window": {"start": "2001-03-31T00:00:00Z"}}'""",
    "snapshot export flights --out /data/flights-state",
    "snapshot pin flights d-0001-live-000001",
    "snapshot unpin flights d-0001-live-000001",
    "plan flights",
    "plan flights --app count_by_origin_v2.py --markdown",
    f"plan flights --app count_by_origin_v2.py {IN_AND_OUT}",
    "plan flights --conf spark.sql.shuffle.partitions=8 --no-rehearsal",
    "plan flights --app count_by_origin_v2.py --replay 10",
    "replay flights",
    "replay flights --app count_by_origin_v2.py --last 3 --out fixed",
    "upgrade flights --app count_by_origin_v2.py",
    "events flights --deployment d-0001",
    "rollback flights",
    "upgrade flights --app count_by_origin_v2.py --warm-return",
    f"upgrade flights --app count_by_origin_v2.py {IN_AND_OUT}",
    "restart flights",
    "upgrade flights --conf spark.sql.shuffle.partitions=8 --no-rehearsal --no-warm",
    "rescale flights --suggest",
    "plan flights --partitions 6 --state-store rocksdb",
    "plan flights --app count_by_origin_v2.py --auto-migrate --state-store rocksdb",
    "plan flights --app mean_by_origin.py --migration sum_to_mean.py --state-store rocksdb",
    "upgrade flights --app mean_by_origin.py --migration sum_to_mean.py --state-store rocksdb",
    "rollback flights",
    "upgrade flights --app count_by_origin_v2.py --partitions 6 --state-store rocksdb",
    "rescale flights --partitions 8 --state-store rocksdb",
    "rescale flights --partitions 3",
    "policy flights --on-failure restart --max-restarts 10",
    "policy flights --on-failure restart --max-restarts 10 --restart-window 3600",
    "policy flights",
    "alerts flights --set no_commit_seconds=300 --off lag_growing",
    "label flights team=payments tier=canary --owner 'data platform'",
    "label flights --remove tier",
    "list --label team=payments --label tier --owner ada",
    "watch --once --json",
    "watch --once --alerts",
    "audit flights",
    "audit flights --since d-0004",
    "snapshot verify flights d-0001-stopped-000001",
    "snapshot verify flights d-0001-stopped-000001 --deep",
    "snapshot diff flights d-0001-live-000004 d-0001-stopped-000001",
    "snapshot prune flights --keep 5 --dry-run",
    "snapshot prune flights --keep 5 --older-than 604800",
    "snapshot retention flights",
    "snapshot retention flights --none",
    "kill flights --grace 5",
    "logs flights --attempt 1 --follow",
    "resume flights",
    'upgrade flights --app count_by_route.py --allow-drain --reason "new grouping key"',
    'stop flights --reason "new version"',
    f"deploy flights --app count_by_route.py {IN_AND_OUT}",
    'drain flights --reason "new grouping key"',
    f"deploy flights --app count_by_origin_v2.py {IN_AND_OUT}",
    "upgrade flights --app count_by_route.py --allow-drain",
    "drain flights",
    f"deploy flights --app count_by_origin_v2.py {IN_AND_OUT}",
    "drain flights --batches-deadline 600 --on-batches-deadline stop --flush-deadline 120",
    f"deploy flights --app count_by_origin.py --setting snapshot_every_seconds=3600 {IN_AND_OUT}",
    "stop flights",
    "resume flights",
    "stop flights --deadline 300 --on-deadline kill",
    'retire flights --reason "replaced by arrivals"',
    "retire flights --delete",
)
"""In this order on one home, each with exit status 0."""
NEEDS = {
    "an object store, a cluster, or Kafka": r"s3://|gs://|abfss://|spark://|spark-sql-kafka|--commit-offsets-to-group",
    "a place for the driver elsewhere": r"--launcher",
    "a mirror next to one at GCS": r"home restore|--home /data/new|--at-mirrors",
    "an upgrade or a drain that is under way": r"^(continue|approve|reject|cancel) ",
    "a query that ran without streamstate": r"^adopt ",
    "a batch that always fails": r"^skip ",
    "a terminal": r" --pdb$",
    "a folder with files of streams (test_declared.py)": r"^(validate|diff|apply|export) ",
    "an end from outside, by Ctrl-C": r"^watch( --metrics-port.*)?$",
    "a first deployment of its own": r"^deploy flights --app count_by_origin.py --on-failure",
    "input that is lost, or a place to start at": r"--accept-lost-input|--accept-repeated-input",
    "a query with as many batches, or a version with the same rows": (
        r"^(replay flights .*(--batch 812|--last 10)|plan flights .*--fail-on-changed-rows)"
    ),
    "files that were moved (test_moved_sources.py)": r"--move-source",
    "a signing key (test_signing.py)": r"^home sign",
    "a second Spark (test_another_spark.py, test_rewritten_streams.py)": r" --(rewriter-)?spark | --prepare-rewriter",
    "a third version, or a sink of a foreachBatch": r"^rollback flights --(snapshot|strategy)",
}
"""What the other lines need that this life has not; the tests of those verbs have it."""


def lines_of_docs() -> dict[str, str]:
    """Every line of a shell block that calls ``streamstate``, by the page that it is first on."""
    found: dict[str, str] = {}
    for page in PAGES:
        for line in lines_of(page):
            if line.startswith("streamstate "):
                words = shlex.join(shlex.split(line, comments=True)[1:])
                found.setdefault(words, page.name)
    return found


def of_the_tutorial() -> set[str]:
    """What ``test_tutorial.py`` runs."""
    return {words for words, page in lines_of_docs().items() if page == "tutorial.md" or words == "home doctor"}


def test_every_line_is_run_or_its_need_is_named() -> None:
    """No command of the docs is left out unseen."""
    run = {shlex.join(shlex.split(line)) for line in LIFE} | of_the_tutorial()
    left = [words for words in lines_of_docs() if words not in run]
    assert [words for words in left if not any(re.search(need, words) for need in NEEDS.values())] == []


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A reader's folder: the scripts of ``dags/jobs`` and the migrations are in it, and the shell is used from it."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        for folder in ("jobs", "migrations"):
            for script in (ROOT / "dags" / folder).glob("*.py"):
                shutil.copy(script, tmp_path)
        monkeypatch.chdir(tmp_path)
        yield made


def feed(folder: Path, number: int) -> None:
    """A file of one flight; each is a week later, so that it closes the window before."""
    folder.mkdir(parents=True, exist_ok=True)
    day = f"2001/{3 + number // 4:02}/{1 + 7 * (number % 4):02}"
    flight = f'{{"date": "{day} 14:05", "delay": 12, "distance": 606, "origin": "ATL", "destination": "ORD"}}\n'
    new = folder.parent / f"{number}.json"
    new.write_text(flight)
    new.rename(folder / new.name)


@pytest.mark.named
def test_the_lines_are_run_in_one_life(desk: Desk) -> None:
    """Each ends as a reader expects, on real Spark and one home."""
    files = 0
    feed(desk.base / "data" / "in", files)
    for line in LIFE:
        if line == "FEED":
            files += 1
            feed(desk.base / "data" / "in", files)
            continue
        words = shlex.split(line.replace("/data/", f"{desk.base}/data/"))
        answer = shell(*words)
        assert answer.status == 0, (line, answer)
