"""A stream under load that is upgraded again and again, while its processes are killed at random."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import upgrade_id_for
from airflow_streamstate.store.local import LocalStore
from support.drivers import CONF
from support.file_sink import rows_in
from support.launches import living_processes, wait_until

STREAM = "orders"
SHELL = str(Path(sys.executable).with_name("streamstate"))
ROWS_PER_FILE = 20
ROWS_PER_SECOND = 8
"""Of event time, which continues however long a soak takes."""
BEGAN_AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
FEED_SECONDS = 0.5
UPGRADE_SECONDS = 240
MAX_TRIES = 12
SCRIPT = """# version VERSION
import sys
from pyspark.sql import SparkSession, functions as F

base = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("t timestamp, k string, v long").option("maxFilesPerTrigger", 40).json(base + "/in")
windows = rows.withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), KEYS)
counts = windows.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select(F.lit("VERSION").alias("by"), "n", "s")
plain = rows.select("v", F.lit("VERSION").alias("by"))
counts.writeStream.queryName("counts").format("json").start(base + "/counts")
plain.writeStream.queryName("rows").format("json").start(base + "/rows")
spark.streams.awaitAnyTermination()
"""
KEYS = {"by-key": '"k"', "by-digit": '(F.col("v") % 3).alias("d")'}
"""What windows are counted by: from the one to the other the state does not survive."""
PHASES = ("begun", "rehearsing", "planned", "waiting", "ready", "stopping", "stopping", "ended", "started", "started")
VICTIMS = ("nobody", "controller", "controller", "old", "new", "any", "both")
Handle = Mapping[str, object]
"""What a launcher has recorded of a driver: the ``data`` of its handle."""


class Drivers(Protocol):
    """Where the drivers of a soak run: how they start and die there, and what is left of them.

    Attributes:
        deploy_words: of the first deploy; an upgrade keeps what they set.
        patience: how many times as long as on this machine everything may take.
    """

    @property
    def deploy_words(self) -> Sequence[str]: ...

    @property
    def patience(self) -> int: ...

    def lives(self, handle: Handle) -> bool:
        """Whether a process of this driver is there."""

    def kill(self, handle: Handle, chance: random.Random) -> str:
        """Kill a driver that lives, in one of the ways in which one dies there; which, as text."""

    def disturb(self, chance: random.Random) -> str:
        """Now and then, what is between controllers and drivers is away for a while; what, as text, or ""."""

    def left(self, home: Path) -> list[str]:
        """What is still there of drivers of this home."""


class LocalDrivers:
    """``Drivers`` on this machine."""

    patience = 1

    @property
    def deploy_words(self) -> Sequence[str]:
        return "--master", "local[2]", *(word for item in CONF.items() for word in ("--conf", "=".join(item)))

    def lives(self, handle: Handle) -> bool:
        pid = handle.get("pid")
        return isinstance(pid, int) and Path(f"/proc/{pid}").exists()

    def kill(self, handle: Handle, chance: random.Random) -> str:
        del chance
        with suppress(ProcessLookupError):
            os.killpg(int(str(handle["pid"])), signal.SIGKILL)
        return "kill -9"

    def disturb(self, chance: random.Random) -> str:
        del chance  # nothing is between a machine and its own processes
        return ""

    def left(self, home: Path) -> list[str]:
        folders = [str(folder) for folder in home.rglob("launches/[dr]-*") if folder.is_dir()]
        return [f"pid {one.pid} of {folder}" for folder in folders for one in living_processes(folder)]


@dataclass
class Soak:
    """One soak.

    Attributes:
        base: an empty folder, or one of a soak that was left.
        random: decides everything; its seed repeats the run, but for what the machine itself does.
        drivers: where they run.
        story: what was done, one line each.
    """

    base: Path
    random: random.Random
    drivers: Drivers = field(default_factory=LocalDrivers)
    outcomes: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)
    fed: int = 0

    def __post_init__(self) -> None:
        (self.base / "in").mkdir(parents=True, exist_ok=True)
        self.fed = len(list((self.base / "in").glob("[0-9]*")))
        self.home = self.base / "home"
        self.control = StreamControl(LocalStore(self.home), STREAM, SYSTEM_CLOCK)
        self._over = threading.Event()
        self._feeder = threading.Thread(target=self._feed_on, name="feeder", daemon=True)
        self._keys = "by-key"

    # its input

    def _feed_on(self) -> None:
        while not self._over.wait(FEED_SECONDS):
            self.feed()

    def feed(self) -> None:
        """One more file, whole at once, younger than those before it."""
        first = self.fed * ROWS_PER_FILE
        lines = []
        for value in range(first, first + ROWS_PER_FILE):
            at = BEGAN_AT + timedelta(seconds=value // ROWS_PER_SECOND)
            lines.append(json.dumps({"t": at.isoformat(), "k": "abc"[value % 3], "v": value}))
        hidden = self.base / "in" / f".{self.fed:06d}"
        hidden.write_text("\n".join(lines) + "\n")
        os.utime(hidden, (1_700_000_000 + self.fed,) * 2)
        hidden.rename(self.base / "in" / f"{self.fed:06d}.json")
        self.fed += 1

    # its versions

    def version(self, number: int) -> tuple[Path, bool]:
        """The next version of the script, and whether it needs a drain."""
        needs_drain = self.random.random() < 0.25
        if needs_drain:
            self._keys = next(keys for keys in KEYS if keys != self._keys)
        path = self.base / f"v{number}.py"
        path.write_text(SCRIPT.replace("VERSION", f"v{number}").replace("KEYS", KEYS[self._keys]))
        return path, needs_drain

    # its life

    def begin(self) -> None:
        """The first version, and rows that never stop coming."""
        for _ in range(4):
            self.feed()
        path, _ = self.version(0)
        self._keys = "by-key"
        path.write_text(SCRIPT.replace("VERSION", "v0").replace("KEYS", KEYS["by-key"]))
        done = self.shell("deploy", "--app", str(path), *self.drivers.deploy_words, *self._within(200), "--",
                          str(self.base))  # fmt: skip
        assert done["state"] == "running", done
        self.feed_on()

    def feed_on(self) -> None:
        """From now on rows never stop coming, until the end."""
        self._feeder.start()

    def upgrade(self, number: int) -> None:
        """One upgrade, with a process killed in it, brought to its end by as many controllers as it takes."""
        before = self._keys
        path, needs_drain = self.version(number)
        victim = self.random.choice(VICTIMS)
        phase, after_seconds = self.random.choice(PHASES), self.random.uniform(0.0, 4.0)
        warm = self.random.random() < 0.8
        self._say(f"upgrade {number}: {'drain' if needs_drain else 'restore'}, {'warm' if warm else 'cold'}, "
                  f"{victim} dies {after_seconds:.1f} s into {phase}")  # fmt: skip
        deadline = str(120 * self.drivers.patience)
        words = ["upgrade", "--app", str(path), "--allow-drain", "--healthy-batches", "2", "--healthy-deadline",
                 deadline, "--request-id", f"up-{number}", *self._within(UPGRADE_SECONDS)]  # fmt: skip
        words += (["--warm-return"] if self.random.random() < 0.3 else []) if warm else ["--no-warm"]
        killed = False
        for _ in range(MAX_TRIES):
            process = self._start(*words)
            if not killed:
                killed = True
                self._strike(victim, phase, after_seconds, f"up-{number}", process)
            out, err = process.communicate(timeout=(UPGRADE_SECONDS + 120) * self.drivers.patience)
            if process.returncode == -signal.SIGKILL:
                continue
            answer = json.loads(out)
            outcome = answer.get("outcome")
            if outcome is not None:
                self._end_of(number, str(outcome), answer, before)
                return
            self._say(f"  exit {process.returncode}: {json.dumps(answer)[:600]} {err[-300:]}")
            words = ["continue", *self._within(UPGRADE_SECONDS)]
        raise AssertionError(f"upgrade {number} never came to its end:\n" + "\n".join(self.story))

    def _end_of(self, number: int, outcome: str, answer: dict[str, Any], keys_before: str) -> None:
        self.outcomes[outcome] += 1
        self._say(f"  {outcome}: {answer['reason'][:300]} way={answer['way']} downtime={answer['downtime_seconds']}"
                  f" audit_ok={answer['audit_ok']}")  # fmt: skip
        if outcome != "upgraded":
            self._keys = keys_before
        assert outcome != "failed", "\n".join(self.story)
        assert answer["audit_ok"] is not False, "\n".join(self.story)
        self.come_to_life(number)

    def come_to_life(self, number: int) -> None:
        """Start again what died between two upgrades."""
        for attempt in range(MAX_TRIES):
            state = self.shell("status")["state"]
            if state == "running":
                return
            if state in ("failed", "stopped", "finished"):
                self._say(f"  it is {state}: resumed")
                self.shell("resume", "--request-id", f"life-{number}-{attempt}", *self._within(120))
            time.sleep(1.0)  # noqa: TID251 - real processes
        raise AssertionError("it does not come to life:\n" + "\n".join(self.story))

    def end(self) -> None:
        """No more rows; then everything that is open comes out."""
        self._over.set()
        self._feeder.join()
        deadline = time.monotonic() + 300 * self.drivers.patience  # noqa: TID251 - real processes
        while len(self.rows()) < self.fed * ROWS_PER_FILE:
            assert time.monotonic() < deadline, "not all was read:\n" + "\n".join(self.story)  # noqa: TID251
            time.sleep(1.0)  # noqa: TID251 - real processes
        done = self.shell("drain", *self._within(200))
        assert done["outcome"] == "drained", done
        wait_until(lambda: not self.drivers.left(self.home), lambda: str(self.drivers.left(self.home)), 120)

    # what it did

    def rows(self) -> Counter[int]:
        """How often each row came through."""
        return Counter(row["v"] for row in rows_in(self.base / "rows"))

    def counted(self) -> tuple[int, int]:
        """Rows and their sum, over all windows that came out."""
        windows = rows_in(self.base / "counts")
        return sum(row["n"] for row in windows), sum(row["s"] for row in windows)

    def expected(self) -> tuple[int, int]:
        """The same, of what was fed."""
        total = self.fed * ROWS_PER_FILE
        return total, total * (total - 1) // 2

    # processes

    def shell(self, verb: str, *words: str) -> dict[str, Any]:
        """The answer to a verb."""
        process = self._start(verb, *words)
        out, err = process.communicate(timeout=400 * self.drivers.patience)
        assert out, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    def _within(self, seconds: int) -> tuple[str, str]:
        return "--timeout", str(seconds * self.drivers.patience)

    def _start(self, verb: str, *words: str) -> subprocess.Popen[str]:
        given = list(words)
        at = given.index("--") if "--" in given else len(given)
        command = [SHELL, verb, STREAM, *given[:at], "--json", "--home", str(self.home), *given[at:]]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _strike(
        self, victim: str, phase: str, after_seconds: float, request_id: str, process: subprocess.Popen[str]
    ) -> None:
        while process.poll() is None and not self._has_come_to(phase, request_id):
            time.sleep(0.05)  # noqa: TID251 - real processes
        with suppress(subprocess.TimeoutExpired):
            process.wait(after_seconds)
            return  # it had ended before
        if victim in ("controller", "both"):
            process.kill()
        drivers = self.living()
        chosen = {
            "old": drivers[:1], "new": drivers[1:][-1:], "any": [self.random.choice(drivers)] if drivers else [],
            "both": drivers,
        }.get(victim, [])  # fmt: skip
        for launch_key, handle in chosen:
            self._say(f"  {launch_key}: {self.drivers.kill(handle, self.random)}")
        if trouble := self.drivers.disturb(self.random):
            self._say(f"  {trouble}")

    def _has_come_to(self, phase: str, request_id: str) -> bool:
        state = UpgradeJournal(self.control).state(upgrade_id_for(request_id))
        return state is not None and phase in state.since

    def living(self) -> list[tuple[str, Handle]]:
        """Launch key and handle of every driver that lives: the current deployment's first."""
        register = self.control.need_register().value
        found = []
        folders = [layout.deployment_folder(STREAM, str(register.deployment_id))]
        folders += [f"{layout.scratch_folder(STREAM)}/{name}" for name in self.control.scratch_ids()]
        for folder in folders:
            for path in sorted((self.home / folder / "launches").glob("*.json")):
                handle = json.loads(path.read_text())["data"]
                if self.drivers.lives(handle):
                    found.append((path.stem, handle))
        return found

    def _say(self, line: str) -> None:
        self.story.append(line)
        print(line, flush=True)
