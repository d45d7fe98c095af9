"""``growing_files`` on a real disk: growth, rotation in its usual ways, truncation, and what a replay reads."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.errors import SourceError
from airflow_streamstate.sources import growing_files
from airflow_streamstate.sources.growing_files import GrowingFiles, base_of, read_lines
from airflow_streamstate.sources.testing import check_partitioned_source
from support.listed_source import Reading

LONG_AGO = 1_700_000_000


class Logs:
    """A folder of logs, and a reading of it that can be started again at its offset."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder = folder
        self.options = {"path": str(folder / "*.log"), **options}
        self.reading = self.fresh()

    def fresh(self) -> Reading:
        from pyspark.sql.types import StructType

        schema = StructType().add("value", "string")
        return Reading(GrowingFiles(self.options), schema=schema)

    def restart(self) -> None:
        self.reading = self.fresh().begin(self.reading.at)

    def write(self, name: str, first: int, last: int, *, end: str = "\n") -> None:
        with (self.folder / name).open("a", newline="") as opened:
            opened.write("".join(f"{name} line {n}\n" for n in range(first, last)) + f"{name} line {last}{end}")

    def old(self, name: str, age: int = 0) -> None:
        """Let a file have been written long ago, so that it may count as closed."""
        os.utime(self.folder / name, (LONG_AGO - age, LONG_AGO - age))

    def rotate(self, name: str) -> None:
        """Rename it, after those that were renamed before, as logrotate does."""
        for number in range(8, 0, -1):
            if (self.folder / f"{name}.{number}").exists():
                (self.folder / f"{name}.{number}").rename(self.folder / f"{name}.{number + 1}")
        (self.folder / name).rename(self.folder / f"{name}.1")

    def lines(self) -> list[str]:
        """All new lines; the batches are read as executors read them."""
        start, found = self.reading.at, []
        for _ in range(100):
            end = self.reading.planner.next(self.reading.at, None)
            if end == self.reading.at:
                break
            found += self.between(self.reading.at, end)
            self.reading.at = end
        else:
            raise AssertionError("it does not end")
        assert start.lineage == self.reading.at.lineage
        return found

    def between(self, start: Any, end: Any) -> list[str]:
        found = []
        for one in self.reading.planner.slices(start, end):
            part = self.reading.source.build_part(one.part, one.start)
            found += [value for batch in part.read(one.end) for value in batch.column(0).to_pylist()]
        return found


def lines(name: str, first: int, last: int) -> list[str]:
    return [f"{name} line {n}" for n in range(first, last + 1)]


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_it_keeps_the_promises_of_a_partitioned_source(logs: Logs) -> None:
    """Read by lines of one byte's limit, by two, and at once, from each of its states."""
    logs.write("a.log", 0, 4)
    logs.write("b.log", 0, 0)
    rows = {
        str(logs.folder / name): [(line, str(logs.folder / name)) for line in lines(name, 0, last)]
        for name, last in (("a.log", 4), ("b.log", 0))
    }
    check_partitioned_source(GrowingFiles, {**logs.options, "withfile": "true"}, rows)
    values = {name: [row[:1] for row in found] for name, found in rows.items()}
    check_partitioned_source(GrowingFiles, logs.options, values)


def test_lines_come_once_as_they_are_written(logs: Logs) -> None:
    """A line counts once its newline is there."""
    logs.write("a.log", 0, 2)
    assert logs.lines() == lines("a.log", 0, 2)
    logs.write("a.log", 3, 3, end="")
    assert logs.lines() == []
    logs.write("a.log", 4, 4)
    assert logs.lines() == ["a.log line 3a.log line 4"]
    logs.restart()
    assert logs.lines() == []


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "down"])
def test_rotation_by_renaming_loses_and_doubles_nothing(logs: Logs, *, is_restarted: bool) -> None:
    """Twice between two polls, with unread lines in each of the three files."""
    logs.write("a.log", 0, 2)
    assert logs.lines() == lines("a.log", 0, 2)
    logs.write("a.log", 3, 4)
    logs.rotate("a.log")
    logs.old("a.log.1", age=20)
    logs.write("a.log", 5, 6)
    logs.rotate("a.log")
    logs.old("a.log.1", age=10)
    logs.write("a.log", 7, 8)
    if is_restarted:
        logs.restart()
    assert logs.lines() == lines("a.log", 3, 8)


def test_a_renamed_file_is_left_only_when_it_is_not_written_any_more(logs: Logs) -> None:
    """Its writer may still have it open."""
    logs.write("a.log", 0, 2)
    logs.lines()
    logs.rotate("a.log")
    logs.write("a.log", 5, 6)
    assert logs.lines() == []
    logs.write("a.log.1", 3, 3)
    assert logs.lines() == ["a.log.1 line 3"]
    logs.old("a.log.1")
    assert logs.lines() == lines("a.log", 5, 6)


def test_the_last_line_of_a_rotated_file_needs_no_newline(logs: Logs) -> None:
    """It will not get one."""
    logs.write("a.log", 0, 1, end="")
    assert logs.lines() == lines("a.log", 0, 0)
    logs.rotate("a.log")
    logs.old("a.log.1")
    logs.write("a.log", 2, 2)
    assert logs.lines() == lines("a.log", 1, 2)


@pytest.mark.parametrize("more", [0, 50], ids=["shorter", "longer than what was read"])
def test_copytruncate_loses_and_doubles_nothing(logs: Logs, more: int) -> None:
    """The copy has the unread lines; the file starts again under its inode, and may already be as long as before."""
    logs.write("a.log", 0, 5)
    assert logs.lines() == lines("a.log", 0, 5)
    logs.write("a.log", 6, 7)
    shutil.copy(logs.folder / "a.log", logs.folder / "a.log.1")
    logs.old("a.log.1")
    with (logs.folder / "a.log").open("r+") as opened:
        opened.truncate()
    logs.write("a.log", 100, 101 + more)
    assert logs.lines() == [*lines("a.log", 6, 7), *lines("a.log", 100, 101 + more)]


def test_a_truncated_file_is_read_from_its_beginning_and_that_is_said(
    logs: Logs, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was written behind the last read line is gone, and no program can know how much that was."""
    logs.write("a.log", 0, 5)
    logs.lines()
    (logs.folder / "a.log").write_text("new\n")
    assert logs.lines() == ["new"]
    assert "was truncated, and no file next to it has its first" in capsys.readouterr().err


def test_a_planned_batch_is_read_again_after_its_file_was_rotated(logs: Logs) -> None:
    """And is an error once it was deleted: nothing else can be given in its place."""
    logs.write("a.log", 0, 5)
    begin = logs.reading.at
    end = logs.reading.planner.next(begin, None)
    logs.rotate("a.log")
    logs.write("a.log", 6, 6)
    assert logs.between(begin, end) == lines("a.log", 0, 5)
    (logs.folder / "a.log.1").unlink()
    with pytest.raises(SourceError, match="not there any more"):
        logs.between(begin, end)


def test_between_two_files_there_is_none_and_the_part_stays(logs: Logs) -> None:
    """Rotation renames first, and the writer makes the new file later."""
    logs.write("a.log", 0, 1)
    logs.lines()
    logs.rotate("a.log")
    logs.restart()
    assert logs.lines() == []
    logs.old("a.log.1")
    logs.write("a.log", 2, 2)
    assert logs.lines() == lines("a.log", 2, 2)


def test_a_file_that_is_gone_with_all_its_copies_is_an_error_or_finished(tmp_path: Path) -> None:
    """As its option sets."""
    for vanished in ("error", "finished"):
        folder = tmp_path / vanished
        folder.mkdir()
        logs = Logs(folder, vanished=vanished)
        logs.write("a.log", 0, 1)
        logs.write("b.log", 0, 1)
        logs.lines()
        (folder / "a.log").unlink()
        assert logs.lines() == []
        logs.reading.clock.advance(300)
        if vanished == "error":
            with pytest.raises(SourceError, match="not there any more, and were not finished"):
                logs.lines()
        else:
            logs.write("b.log", 2, 2)
            assert logs.lines() == lines("b.log", 2, 2)


class Meddled:
    """Something that happens behind a call of a function of the module, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Any) -> None:
        self.original, self.acts = getattr(owner, name), [act]
        monkeypatch.setattr(owner, name, lambda *given, **named: self.call(*given, **named))

    def call(self, *given: Any, **named: Any) -> Any:
        found = self.original(*given, **named)
        if self.acts:
            return self.acts.pop()(found)
        return found


@pytest.mark.parametrize("ask", ["plan", "lost", "read"])
def test_one_look_that_misses_a_file_loses_nothing(logs: Logs, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    """Files are renamed while a folder is listed."""
    logs.write("a.log", 0, 2)
    begin = logs.reading.at
    logs.lines()
    logs.write("a.log", 3, 3)
    logs.rotate("a.log")
    logs.old("a.log.1")
    logs.write("a.log", 4, 4)
    name, offset = next(iter(logs.reading.at.parts.items()))
    part = logs.reading.source.build_part(name, offset.state)
    Meddled(monkeypatch, growing_files, "_matching", lambda _found: [])
    if ask == "plan":
        part.plan_end(None)
        assert part.snapshot()["turn"] == 0
    elif ask == "lost":
        assert part.lost() is None
    else:
        assert logs.between(begin, logs.reading.at) == lines("a.log", 0, 2)
    assert logs.lines() == lines("a.log", 3, 4)


def test_a_look_that_misses_a_file_between_two_others_does_not_pass_it_over(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part moves on only to the file that comes next."""
    logs.write("a.log", 0, 0)
    logs.lines()
    for n in (1, 2):
        logs.rotate("a.log")
        logs.old("a.log.1", age=20 - n)
        logs.write("a.log", n, n)
    name, offset = next(iter(logs.reading.at.parts.items()))
    part = logs.reading.source.build_part(name, offset.state)
    Meddled(monkeypatch, growing_files, "_matching", lambda found: [one for one in found if not one.endswith(".1")])
    part.plan_end(None)
    assert part.snapshot()["inode"] == (logs.folder / "a.log.1").stat().st_ino


def test_a_rotation_while_a_batch_is_planned_keeps_file_and_mark_together(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes before a place are those of the file that it is in, whatever has its name by then."""
    logs.write("a.log", 0, 1)

    def rotated(found: Any) -> Any:
        logs.rotate("a.log")
        logs.write("a.log", 100, 120)
        return found

    Meddled(monkeypatch, growing_files, "_last_line_end", rotated)
    begin = logs.reading.at
    end = logs.reading.planner.next(begin, None)
    assert logs.between(begin, end) == lines("a.log", 0, 1)
    logs.reading.at = end
    logs.old("a.log.1")
    assert logs.lines() == lines("a.log", 100, 120)


def test_a_line_before_the_marker_is_read_before_its_file_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker counts for the size that is looked at behind it."""
    logs = Logs(tmp_path, donesuffix=".done")
    logs.write("a.log", 0, 0)
    logs.lines()

    def finished(found: Any) -> Any:
        logs.write("a.log", 1, 1)
        (tmp_path / "a.log.done").touch()
        return found

    name, offset = next(iter(logs.reading.at.parts.items()))
    Meddled(monkeypatch, growing_files.GrowingFile, "_files", finished)
    assert not logs.reading.source.build_part(name, offset.state).is_finished()
    assert logs.lines() == lines("a.log", 1, 1)
    assert logs.reading.at.is_finished


def test_a_folder_that_cannot_be_listed_is_trouble_and_no_empty_listing(tmp_path: Path) -> None:
    """No part vanishes by it, and the lines come once it can be listed again."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for pattern in ("logs/*.log", "*/a.log"):
        logs = Logs(folder, path=str(tmp_path / pattern), vanished="finished")
        logs.write("a.log", 0, 1)
        logs.lines()
        folder.rename(tmp_path.parent / "aside")
        folder.symlink_to(folder)
        assert logs.lines() == []
        assert "list_parts() of the source failed and is tried again" in logs.reading.said[-1]
        folder.unlink()
        (tmp_path.parent / "aside").rename(folder)
        logs.reading.clock.advance(1)
        logs.write("a.log", 2, 2)
        assert logs.lines() == lines("a.log", 2, 2)


def test_a_file_is_finished_by_its_marker(tmp_path: Path) -> None:
    """With all its lines, the last one without a newline too; the source when all are."""
    logs = Logs(tmp_path, doneSuffix=".done".lower())
    logs = Logs(tmp_path, donesuffix=".done")
    logs.write("a.log", 0, 1)
    logs.write("b.log", 0, 1, end="")
    (tmp_path / "a.log.done").touch()
    assert sorted(logs.lines()) == [*lines("a.log", 0, 1), *lines("b.log", 0, 0)]
    assert not logs.reading.at.is_finished
    (tmp_path / "b.log.done").touch()
    assert logs.lines() == lines("b.log", 1, 1)
    assert logs.reading.at.is_finished


@pytest.mark.parametrize(("start_at", "found"), [("beginning", (3, 5)), ("oldest", (0, 5)), ("end", (6, 6))])
def test_it_begins_where_it_is_told(tmp_path: Path, start_at: str, found: tuple[int, int]) -> None:
    """Fixed with the first batch, so that what comes next is read."""
    logs = Logs(tmp_path, startat=start_at)
    logs.write("a.log", 0, 2)
    logs.rotate("a.log")
    logs.old("a.log.1")
    logs.write("a.log", 3, 5)
    before = logs.lines()
    logs.restart()
    logs.write("a.log", 6, 6)
    assert [*before, *logs.lines()] == lines("a.log", found[0], 6)


@pytest.mark.parametrize(("pattern", "name"), [("app-*", "app-2026-01-02"), ("server.2024", "server.2024")])
def test_files_whose_own_names_look_rotated_are_refused_by_name(tmp_path: Path, pattern: str, name: str) -> None:
    """They would be left out, and nothing would report it."""
    logs = Logs(tmp_path, path=str(tmp_path / pattern))
    logs.write(name, 0, 1)
    with pytest.raises(SourceError, match="a name as rotation gives it") as caught:
        logs.lines()
    assert caught.value.context["file"] == str(tmp_path / name)


def test_what_is_in_a_line_is_kept(logs: Logs) -> None:
    """Empty lines, other line ends, long lines, characters; bytes that are no UTF-8 are replaced, the rest stays."""
    long = "x" * 300_000
    (logs.folder / "a.log").write_bytes(f"\n\ntwo\r\nä €\n{long}\n \n".encode() + b"\xff!\nlast\n")
    assert logs.lines() == ["", "", "two", "ä €", long, " ", "\ufffd!", "last"]


def test_a_file_that_ends_before_what_was_planned_is_an_error() -> None:
    """A batch with fewer rows than planned would lose the rest (Law 14)."""
    with pytest.raises(SourceError, match="ended before the line"):
        list(read_lines(io.BytesIO(b"one\n"), 0, 8, "app.log"))


def test_a_limit_ends_behind_a_line(logs: Logs) -> None:
    """At least one line comes, however long it is."""
    (logs.folder / "a.log").write_text("x" * 1_000 + "\n" + "\n".join("abcdefghij") + "\n")
    reading = logs.reading
    ends = []
    for _ in range(20):
        reading.at = reading.planner.next(reading.at, 8)
        ends.append(sum(part.units for part in reading.at.parts.values()))
    assert [end for end in ends if end][:3] == [1_001, 1_009, 1_017]


def test_behind_and_lost_are_told(logs: Logs) -> None:
    """In bytes; what rotation took before it was read is lost, and a start asks a person."""
    logs.write("a.log", 0, 1)
    logs.lines()
    name, offset = next(iter(logs.reading.at.parts.items()))

    def part() -> Any:
        return logs.reading.source.build_part(name, offset.state)

    assert (part().behind(), part().lost()) == (0, None)
    logs.write("a.log", 2, 2)
    assert part().behind() == len("a.log line 2\n")
    logs.rotate("a.log")
    logs.write("a.log", 3, 3)
    assert (part().behind(), part().lost()) == (2 * len("a.log line 2\n"), None)
    (logs.folder / "a.log.1").unlink()
    assert part().lost().reason == "removed"
    (logs.folder / "a.log").unlink()
    assert part().lost().reason == "gone"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("/x/app.log.1", "/x/app.log"),
        ("/x/app.log-20260102", "/x/app.log"),
        ("/x/app.log.2026-01-02", "/x/app.log"),
        ("/x/app.log.2026-01-02_10", "/x/app.log"),
        ("/x/app.log", None),
        ("/x/app-1.log", None),
        ("/x/app.log.gz", None),
    ],
)
def test_names_of_rotated_files(name: str, base: str | None) -> None:
    """Numbers and dates behind the name."""
    assert base_of(name) == base


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option path"),
        ({"path": "/x", "startat": "middle"}, "startAt of growing_files is unknown"),
        ({"path": "/x", "rotateseconds": "soon"}, "is no number"),
        ({"path": "/x", "vanished": "never"}, "is error or finished"),
    ],
)
def test_options_that_are_wrong_are_named(options: dict[str, str], words: str) -> None:
    """When the source is made, before anything is read."""
    with pytest.raises(SourceError, match=words):
        GrowingFiles(options)
