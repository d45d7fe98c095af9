"""However a script waits for its queries, its stream is stopped, resumed, upgraded warm, drained and deployed again."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.drivers import CONF, seconds_of
from support.file_sink import rows_in
from support.launches import living_processes, wait_until
from support.progress import files_read
from support.shell import Desk, desk_with, meanwhile, shell
from support.waiting_shapes import HEAD, SHAPES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

STREAM = "shapes"
QUICK = [word for key, value in CONF.items() for word in ("--conf", f"{key}={value}")]
SETTINGS = ("--setting", "exit_grace_seconds=5", "--setting", "heartbeat_seconds=1")
WAIT = ("--timeout", 300)
SECONDS_PER_FILE = 20
ENDED_BADLY = {"Failed", "Fenced", "DrainFailed", "QueryFailed"}
IN_FULL = ("restarted when it ended",)
"""The others take longer, or are this in parts; ``test_runtime_scripts.py`` holds waits with a timeout and the manager,
too."""


class Shape:
    """A stream whose script waits in one way; each file that is fed is one window of two keys, and closes the last."""

    def __init__(self, base: Path, name: str) -> None:
        self._base = base
        self._text = HEAD + SHAPES[name]
        self._files = 0
        self._turns = 0
        (base / "in").mkdir()

    def feed(self) -> None:
        """One more file, whole at once, younger than those before it."""
        seconds = [self._files * SECONDS_PER_FILE + row for row in range(4)]
        lines = [
            {"t": seconds_of(second // 60, second % 60), "k": "ab"[row % 2], "v": 1}
            for row, second in enumerate(seconds)
        ]
        hidden = self._base / "in" / f".{self._files:05d}"
        hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(hidden, (1_700_000_000 + self._files,) * 2)
        hidden.rename(self._base / "in" / f"{self._files:05d}.json")
        self._files += 1

    def feed_slowly(self) -> None:
        """As input comes: a file once the one before it has been read."""
        self._turns += 1
        if self._turns % 50 == 0 and self.read() == self._files:
            self.feed()

    def does(self, verb: str, *words: object) -> dict[str, Any]:
        """What the shell answers to a verb that succeeds."""
        answer = shell(verb, STREAM, *words, "--json")
        assert answer.status == 0, (verb, answer, self.log())
        return answer.json

    def deploy(self, version: str) -> None:
        """The next version of the script."""
        words = ("--app", self.script(version), "--master", "local[1]", *QUICK, *SETTINGS, *WAIT)
        answer = shell("deploy", STREAM, *words, "--json", "--", self._base)
        assert answer.status == 0, (answer, self.log())

    def script(self, version: str) -> Path:
        path = self._base / version / "job.py"
        path.parent.mkdir()
        path.write_text(self._text.replace("VERSION", version))
        return path

    def wait_read(self) -> None:
        """Until everything that was fed is in committed batches."""
        wait_until(lambda: self.read() == self._files, self.log, 120)

    def read(self) -> int:
        """Files that committed batches of the current deployment have read."""
        newest = max((self._base / "home" / STREAM / "deployments").glob("d-*"))
        return max((files_read(folder) for folder in newest.glob("checkpoints/counts*")), default=0)

    def state(self) -> str:
        """What ``status`` reports."""
        return str(self.does("status")["state"])

    def wait_gone(self) -> None:
        """Until no process of any driver is left."""
        folders = [str(path) for path in (self._base / "home").rglob("launches/[dr]-*") if path.is_dir()]
        wait_until(lambda: not any(living_processes(folder) for folder in folders), self.log, 60)

    def statuses(self) -> set[str]:
        """The exit statuses of all drivers."""
        return {path.read_text().strip() for path in (self._base / "home").rglob("launches/*/exit_status")}

    def log(self) -> str:
        """What the drivers printed."""
        return "\n".join(path.read_text()[-3000:] for path in (self._base / "home").rglob("driver.log"))

    def check_output(self) -> None:
        """Each window came out once, with each of its rows."""
        rows = rows_in(self._base / "out")
        expected = Counter(dict.fromkeys("ab", self._files))
        assert Counter(row["k"] for row in rows) == expected
        assert len({(row["k"], row["start"]) for row in rows}) == len(rows)
        assert {row["n"] for row in rows} == {2}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names; no driver is left of it."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "STREAMSTATE_")) as made:
        yield made


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_FULL else pytest.mark.named) for name in SHAPES]
)
def test_whatever_a_script_waits_for_its_stream_lives_a_whole_life(desk: Desk, name: str) -> None:
    """Its rehearsal ends however it waits, so its driver takes over warm. A script that lives on after a stop or drain
    is ended with status 0 and is never called fenced or failed (1a.8, 1a.11)."""
    shape = Shape(desk.base, name)
    shape.feed()
    shape.deploy("v1")
    shape.feed()
    shape.wait_read()
    shape.does("stop", *WAIT)
    assert shape.state() == "stopped"
    shape.feed()
    shape.does("resume", *WAIT)
    assert shape.state() == "running"
    with meanwhile(shape.feed_slowly):
        upgraded = shape.does("upgrade", "--app", shape.script("v2"), "--healthy-batches", 1, *WAIT)
    assert (upgraded["outcome"], upgraded["driver"]) == ("upgraded", "waits"), (upgraded, shape.log())
    shape.wait_read()
    shape.does("drain", *WAIT)
    assert shape.state() == "drained"
    shape.wait_gone()
    assert shape.state() == "drained"
    shape.feed()
    shape.deploy("v3")
    shape.wait_read()
    shape.does("drain", *WAIT)
    shape.wait_gone()
    assert shape.state() == "drained"
    shape.check_output()
    assert shape.statuses() == {"0"}
    kinds = {event["kind"] for event in shape.does("events")["events"]}
    assert kinds & ENDED_BADLY == set(), kinds
