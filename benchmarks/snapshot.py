"""Snapshot of a running query, from its acceptance to the event that its manifest is written, against ``cp -r``
of the very files that it holds.

State is built by Spark itself, in RocksDB; the query continues over small batches while it is measured. Copy and
snapshot take turns, and whichever is first changes from pair to pair. Nothing is dropped from the page cache: both read
what Spark has just written. What is dirty is synced before each, or the one that comes later pays for the one before.
The seal that follows a snapshot reads every byte; the copy waits until it is done.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from statistics import median
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Accepted, SnapshotReady
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import Running, Streams

NAME = "snapshot"
SCRIPT = "payload_by_key.py"
QUERY = "payloads"
KEYS, QUICK_KEYS = 1_000_000, 200_000
BATCHES_OF_KEYS = 2  # few, so that the checkpoint holds little besides its last version
PAIRS, QUICK_PAIRS = 5, 3
TRICKLE_KEYS = 500
TRICKLE_SECONDS = 2.0
BUILD_SECONDS = 300.0
WAIT_SECONDS = 120.0
GOAL_RATIO = 50.0


class Keys:
    """Writes ranges of keys as files for the job, two at a time: one for each core."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        folder.mkdir(parents=True)

    def write(self, first: int, count: int) -> None:
        """One batch of ``count`` keys."""
        for part in range(2):
            half = count // 2
            line = {"first": first + part * half, "count": half, "round": self._written}
            hidden = self._folder / f".{self._written:06d}.json"
            hidden.write_text(json.dumps(line) + "\n", encoding="utf-8")
            hidden.rename(self._folder / hidden.name.lstrip("."))
            self._written += 1

    def start_trickle(self, keys: int) -> None:
        """Continue with small batches over keys that are there already."""

        def trickle() -> None:
            at = 0
            while not self._stop.wait(TRICKLE_SECONDS):
                self.write(at % (keys - TRICKLE_KEYS), TRICKLE_KEYS)
                at += keys // 7

        self._thread = threading.Thread(target=trickle, name="trickle", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)


def run(session: Session) -> list[Result]:
    """Build the state, then measure pairs."""
    folder = session.folder / NAME
    keys = Keys(folder / "keys")
    count = QUICK_KEYS if session.quick else KEYS
    per_batch = count // BATCHES_OF_KEYS
    with Streams.on_disk(folder / "home") as streams:
        for first in range(0, count, per_batch):
            keys.write(first, per_batch)
        running = streams.deploy(
            NAME, SCRIPT, "--input", str(folder / "keys"), "--checkpoint", str(folder / "own-checkpoint"),
            conf={"spark.driver.memory": "2g"},
        )  # fmt: skip
        running.wait_committed(QUERY, BATCHES_OF_KEYS - 1, BUILD_SECONDS)
        keys.start_trickle(count)
        try:
            running.wait_committed(QUERY, BATCHES_OF_KEYS, WAIT_SECONDS)
            return [_measure(session, running, folder / "copies")]
        finally:
            keys.stop()


def _measure(session: Session, running: Running, copies: Path) -> Result:
    copies.mkdir()
    rounds: list[dict[str, Any]] = []
    first_batch_id = running.checkpoint(QUERY).commit_ids()[-1]
    newest = _snapshot(running)["snapshot_id"]  # not counted: the first of anything is slow
    for number in range(QUICK_PAIRS if session.quick else PAIRS):
        found: dict[str, Any] = {}
        for is_snapshot in (True, False) if number % 2 == 0 else (False, True):
            os.sync()
            found |= _snapshot(running) if is_snapshot else _copy(running, newest, copies)
        newest = found["snapshot_id"]
        found["ratio"] = found["copy_seconds"] / found["snapshot_seconds"]
        found["ratio_durable"] = found["copy_durable_seconds"] / found["snapshot_seconds"]
        rounds.append(found)
        session.say(
            f"  snapshot {number + 1}: {found['snapshot_seconds'] * 1000:.0f} ms for "
            f"{found['snapshot_bytes'] / 1e6:,.0f} MB in {found['snapshot_files']:.0f} files; cp -r of such a one "
            f"{found['copy_seconds']:.2f} s, {found['ratio']:.0f} x; until it is on the disk, too, "
            f"{found['copy_durable_seconds']:.2f} s, {found['ratio_durable']:.0f} x"
        )
    batches = running.checkpoint(QUERY).commit_ids()[-1] - first_batch_id
    if batches < 1:
        raise BenchmarkError("the query committed no batch while it was measured, so nothing was live")
    return _result(rounds, batches)


def _snapshot(running: Running) -> dict[str, Any]:
    requested_at = SYSTEM_CLOCK.now()
    order = running.controller.order("snapshot", running.stream_id)
    outcome = running.controller.wait(WaitCondition.of(order), WAIT_SECONDS).end
    snapshot = outcome.snapshot
    if snapshot is None:
        raise BenchmarkError(f"no snapshot: {outcome.reason}")
    mine = [event for event in running.events() if getattr(event, "command_id", None) == order.command_id]
    accepted = next(event.at for event in mine if isinstance(event, Accepted))
    ready = next(event.at for event in mine if isinstance(event, SnapshotReady))
    control = running.streams.home.control(running.stream_id)
    running.wait(lambda: control.seal(snapshot.snapshot_id) is not None, "the seal", WAIT_SECONDS)
    sealed = control.seal(snapshot.snapshot_id)
    return {
        "snapshot_id": snapshot.snapshot_id,
        "snapshot_seconds": max((ready - accepted).total_seconds(), 0.001),
        "from_request_seconds": (ready - requested_at).total_seconds(),
        "seal_seconds": (sealed.sealed_at - ready).total_seconds() if sealed is not None else 0.0,
        "snapshot_bytes": float(snapshot.size_bytes),
        "snapshot_files": float(snapshot.files),
    }


def _copy(running: Running, snapshot_id: str, copies: Path) -> dict[str, float]:
    """Copy just the files that a snapshot has: not the older versions that are next to them in the checkpoint."""
    folder = layout.snapshot_data_folder(running.stream_id, snapshot_id, QUERY)
    source, target = Path(running.streams.home.checkpoints.uri) / folder, copies / "copy"
    began = SYSTEM_CLOCK.monotonic_seconds()
    # Never a reflink, which copies nothing.
    done = subprocess.run(
        ["cp", "-r", "--reflink=never", str(source), str(target)], capture_output=True, text=True, check=False
    )
    seconds = SYSTEM_CLOCK.monotonic_seconds() - began
    if done.returncode:
        raise BenchmarkError(f"cp -r: {done.stderr.strip()}")
    files = [path for path in target.rglob("*") if path.is_file()]
    began = SYSTEM_CLOCK.monotonic_seconds()
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    synced_seconds = SYSTEM_CLOCK.monotonic_seconds() - began
    size = sum(path.stat().st_size for path in files)
    shutil.rmtree(target)
    return {"copy_seconds": seconds, "copy_durable_seconds": seconds + synced_seconds, "copy_bytes": float(size)}


def _result(rounds: list[dict[str, Any]], batches: int) -> Result:
    middle = {name: median(found[name] for found in rounds) for name in rounds[0] if name != "snapshot_id"}
    numbers: tuple[dict[str, Number], ...] = tuple(dict(found) for found in rounds)
    return Result(
        name=NAME,
        of=Side(f"live snapshot of {middle['snapshot_bytes'] / 1e6:,.0f} MB", middle["snapshot_seconds"], "s"),
        against=Side(f"cp -r of {middle['copy_bytes'] / 1e6:,.0f} MB", middle["copy_seconds"], "s"),
        ratio=middle["ratio"],
        ratio_means="times as fast",
        goal=Goal("50 times as fast as cp -r", middle["ratio"], ">=", GOAL_RATIO, "x"),
        rounds=numbers,
        notes=(
            f"the snapshot is on the disk when it is reported, the copy in the page cache: until it is on the "
            f"disk as well, {middle['ratio_durable']:.0f} x ({middle['copy_durable_seconds']:.1f} s); pairs from "
            f"{min(found['ratio'] for found in rounds):.0f} to {max(found['ratio'] for found in rounds):.0f} x",
            f"cp -r of the same {middle['snapshot_files']:.0f} files, from a warm page cache, nothing reflinked; the "
            f"query committed {batches} batches in the meantime; with the poll of the commands before it "
            f"{middle['from_request_seconds']:.2f} s from the request; sealed {middle['seal_seconds']:.1f} s later",
        ),
    )
