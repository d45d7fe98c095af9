"""What ``/proc`` shows, also where it shows it badly."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from airflow_streamstate.launch.processes import (
    ProcessStat,
    all_processes,
    environment_of,
    exit_sentence,
    has_in_environment,
    parse_stat,
    read_stat,
    send_signal,
    session_members,
    this_machine,
)
from support.acting_clock import ActingClock


def stat_text(
    pid: int, *, session: int = 30, ticks: int = 500, state: str = "S", name: str = "java", group: int = 20
) -> str:
    return f"{pid} ({name}) {state} 1 {group} {session} 0 -1 4194304 9 0 0 0 0 0 0 0 20 0 1 0 {ticks} 1000 2\n"


def fake_proc(base: Path, stats: dict[int, str], environments: dict[int, bytes] | None = None) -> Path:
    for pid, text in stats.items():
        (base / str(pid)).mkdir()
        (base / str(pid) / "stat").write_text(text)
        (base / str(pid) / "environ").write_bytes((environments or {}).get(pid, b""))
    (base / "self").mkdir()
    (base / "uptime").write_text("1 1")
    return base


@pytest.mark.parametrize("name", ["java", "a) S 1 2 3 (b", "with space", "()", "new\nline", ""])
def test_fields_are_counted_from_the_last_bracket(name: str) -> None:
    """A process that calls itself something with brackets, blanks or newlines does not shift the fields."""
    assert parse_stat(stat_text(7, name=name)) == ProcessStat(7, "S", 1, 20, 30, 500)


@pytest.mark.parametrize(
    "text", ["", "7", "7 (java) S 1", "x (java) S 1 2", "7 java S " + "1 " * 30, "7 (a) S " + "x " * 30]
)
def test_what_is_no_stat_is_none(text: str) -> None:
    """A file that was cut, or is none, names no process."""
    assert parse_stat(text) is None


@pytest.mark.parametrize(
    ("state", "alive"), [("R", True), ("S", True), ("D", True), ("T", True), ("Z", False), ("X", False)]
)
def test_a_zombie_is_not_alive(state: str, alive: bool) -> None:
    """Zombies and the dead cannot do anything any more, though they have a pid."""
    stat = parse_stat(stat_text(7, state=state))
    assert stat is not None
    assert stat.is_alive is alive


def test_this_process_is_there() -> None:
    """The real ``/proc`` shows this process, its session and its start."""
    stat = read_stat(os.getpid())
    assert stat is not None
    assert (stat.pid, stat.parent_pid, stat.session_id) == (os.getpid(), os.getppid(), os.getsid(0))
    assert stat in [other for other in all_processes() if other.pid == stat.pid]


def test_processes_that_end_meanwhile_are_left_out(tmp_path: Path) -> None:
    """A folder without a readable stat is a process that has just ended."""
    proc = fake_proc(tmp_path, {7: stat_text(7)})
    (proc / "8").mkdir()
    assert [stat.pid for stat in all_processes(proc)] == [7]


def test_a_session_is_its_living_members(tmp_path: Path) -> None:
    """Java, python and the daemon in its own group belong; zombies and others do not."""
    stats = {
        30: stat_text(30),
        31: stat_text(31, ticks=600),
        32: stat_text(32, ticks=700, group=32),
        33: stat_text(33, state="Z"),
        40: stat_text(40, session=40),
    }
    members = session_members(30, 500, "A=B", fake_proc(tmp_path, stats))
    assert sorted(member.pid for member in members) == [30, 31, 32]


def test_a_session_whose_number_is_used_again_is_not_ours(tmp_path: Path) -> None:
    """A leader with our pid and another start leads another session."""
    proc = fake_proc(tmp_path, {30: stat_text(30, ticks=900), 31: stat_text(31, ticks=901)})
    assert session_members(30, 500, "A=B", proc) == []


def test_without_its_leader_only_marked_members_count(tmp_path: Path) -> None:
    """When the leader has ended, a process must carry our marker to be taken for a member."""
    stats = {31: stat_text(31, ticks=600), 32: stat_text(32, ticks=601), 33: stat_text(33, ticks=400)}
    environments = {31: b"X=1\0A=B\0", 32: b"A=BC\0", 33: b"A=B\0"}
    proc = fake_proc(tmp_path, stats, environments)
    assert [member.pid for member in session_members(30, 500, "A=B", proc)] == [31]


def test_an_environment_that_cannot_be_read_has_nothing(tmp_path: Path) -> None:
    """Another user's process, or one that has ended, is not taken for ours."""
    assert not has_in_environment(7, "A=B", tmp_path)


def test_a_process_that_has_just_been_started_is_waited_for(tmp_path: Path) -> None:
    """``Popen`` returns a moment before the kernel shows the new environment; no driver is overlooked in it."""
    place = fake_proc(tmp_path, {7: stat_text(7)}) / "7"
    (place / "cmdline").touch()
    (place / "exe").symlink_to("/usr/bin/java")
    clock = ActingClock()
    clock.after(0.005, lambda: (place / "environ").write_bytes(b"X=1\0A=B\0"))
    assert b"A=B" in environment_of(7, tmp_path, clock)


@pytest.mark.parametrize(("cmdline", "has_program"), [(b"airflow scheduler\0", True), (b"", False)])
def test_a_process_without_an_environment_is_not_waited_for(tmp_path: Path, cmdline: bytes, has_program: bool) -> None:
    """Such as one that wrote its title over it, a zombie, and a thread of the kernel."""
    place = fake_proc(tmp_path, {7: stat_text(7)}) / "7"
    (place / "cmdline").write_bytes(cmdline)
    if has_program:
        (place / "exe").symlink_to("/usr/bin/python3")
    clock = ActingClock()
    before = clock.now()
    assert not any(environment_of(7, tmp_path, clock))
    assert clock.now() == before


def test_a_signal_reaches_the_process_that_was_meant() -> None:
    """The process with these start ticks gets it; one that got its pid would not."""
    with subprocess.Popen(["/bin/sleep", "300"]) as process:
        stat = read_stat(process.pid)
        assert stat is not None
        other = ProcessStat(stat.pid, stat.state, stat.parent_pid, stat.group_id, stat.session_id, stat.start_ticks + 1)
        assert not send_signal(other, signal.SIGKILL)
        assert process.poll() is None
        assert send_signal(stat, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    assert not send_signal(stat, signal.SIGKILL)


def test_a_machine_without_proc_has_no_boot(tmp_path: Path) -> None:
    """What cannot be read is empty, which is equal to no other boot."""
    machine = this_machine(tmp_path)
    assert (machine.boot_id, machine.pid_namespace) == ("", "")
    assert this_machine() == this_machine()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "it ended with exit status 0"),
        (143, "SIGTERM (exit status 143)"),
        (137, "SIGKILL"),
        (255, "exit status 255"),
    ],
)
def test_an_exit_status_is_put_into_words(code: int, words: str) -> None:
    """128 + n is the signal n, if that exists."""
    assert words in exit_sentence(code)
