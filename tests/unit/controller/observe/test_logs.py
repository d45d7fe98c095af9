"""Reading a log as it grows."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.controller.observe.logs import FileLog, LogReader, TailedLog


def test_a_log_is_read_in_whole_lines_as_it_grows(tmp_path: Path) -> None:
    """Each line is given once, when it is complete; at the end the rest."""
    path, ended = tmp_path / "driver.log", []
    path.write_text("one\ntwo\nthr")
    reader = LogReader(FileLog(path, 100), tuple, lambda: bool(ended))
    assert reader.read_new() == "one\ntwo\n"
    with path.open("a") as file:
        file.write("ee\nfour")
    assert reader.read_new() == "three\n"
    ended.append(True)
    assert reader.read_new() == "four"
    assert reader.read_new() == ""


def test_a_secret_is_hidden_also_where_it_comes_in_two_parts(tmp_path: Path) -> None:
    """A secret that was half written when the log was read is not shown by halves."""
    path = tmp_path / "driver.log"
    path.write_text("key hun")
    reader = LogReader(FileLog(path, 100), lambda: ("hunter2",), lambda: False)
    first = reader.read_new()
    with path.open("a") as file:
        file.write("ter2\n")
    assert first + reader.read_new() == "key ***\n"


def test_a_secret_that_the_beginning_cuts_in_two_is_not_shown_by_halves(tmp_path: Path) -> None:
    """Reading starts with a whole line, however the bytes fall."""
    path = tmp_path / "driver.log"
    path.write_text("key hunter2 is wrong\nlast\n")
    for tail_bytes in range(1, 40):
        text = LogReader(FileLog(path, tail_bytes), lambda: ("hunter2",), lambda: True).read_all()
        assert text in ("", "last\n", "key *** is wrong\nlast\n")
    assert LogReader(FileLog(path, 5), tuple, lambda: True).read_all() == "last\n"


def test_no_log_is_no_error(tmp_path: Path) -> None:
    """A driver that has not written yet, or wrote elsewhere, has an empty log."""
    assert LogReader(FileLog(None, 5), tuple, lambda: False).read_new() == ""
    assert LogReader(FileLog(tmp_path / "not-there", 5), tuple, lambda: True).read_new() == ""


def test_a_log_elsewhere_is_followed_by_its_end() -> None:
    """A launcher reports the last bytes only: what was read before is recognised in them."""
    whole = ["one\ntw"]

    def tail(count: int) -> str:
        return whole[0][-count:]

    reader = LogReader(TailedLog(tail, 100), tuple, lambda: len(whole) > 1)
    assert reader.read_new() == "one\n"
    assert reader.read_new() == ""
    whole[0] += "o\nthree\nfour"
    assert reader.read_new() == "two\nthree\n"
    whole.append("ended")
    assert reader.read_all() == "four"


def test_a_log_elsewhere_begins_with_a_whole_line() -> None:
    """Half a line may start with half a secret."""
    reader = LogReader(TailedLog(lambda count: "hunter2\nlast\n"[-count:], 8), tuple, lambda: True)
    assert reader.read_all() == "last\n"


def test_a_log_elsewhere_that_was_rotated_goes_on() -> None:
    """The end of before is not in it: all that is reported is new."""
    told = iter(["old\n", "new\n"])
    log = TailedLog(lambda _count: next(told), 100)
    assert (log.read(), log.read()) == (b"old\n", b"new\n")
