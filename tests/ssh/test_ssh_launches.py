"""What travels to a host, what is left there, and launches that race or die."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.command import PROPERTIES
from airflow_streamstate.launch.folder import HANDLE
from airflow_streamstate.launch.interface import DRIVER_CONFIG, LaunchHandle, LaunchStatus
from airflow_streamstate.launch.ssh import SshLauncher
from support.launches import COUNT_START, living_processes, starts, wait_for_end, wait_until
from support.ssh_stage import RECORDS, ssh_request
from support.sshd import SESSIONS, Sshd

TESTS = Path(__file__).resolve().parents[1]
SUPPORT = TESTS / "support"
RUNS_ON = COUNT_START + "sleep 300"
SECRET = "s3cr3t-of-the-driver"


def caller(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process that uses the launcher."""
    return subprocess.Popen(
        [sys.executable, str(SUPPORT / program), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )


def test_the_files_of_a_driver_travel(server: Sshd, tmp_path: Path) -> None:
    """Script, modules, py-files, files and jars of this machine, also those of the configuration and what is placed
    for the launch after the check; not what is there."""
    here = tmp_path / "here"
    (here / "lib").mkdir(parents=True)
    bodies = {"lib/mod.py": "m", "a/x.py": "x", "a/data.csv": "d", "a/one.jar": "1", "b/one.jar": "2", "c.jar": "3"}
    for name, body in bodies.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(body)
    (here / "job.py").write_text("print('job')")
    request = ssh_request(
        server,
        tmp_path,
        'for word in "$@"; do echo "$word"; done',
        application=str(here / "job.py"),
        modules=("lib/mod.py",),
        py_files=(str(here / "a/x.py"),),
        files=(f"{here}/a/data.csv#table.csv",),
        jars=(str(here / "a/one.jar"), f"{here}/b/*.jar", "file:/opt/there.jar", "https://example.com/x.jar"),
        conf={"spark.jars": str(here / "c.jar")},
    )
    launcher = SshLauncher(SYSTEM_CLOCK)
    (tmp_path / "there.jar").touch()
    late = Path(request.folder) / "code" / "jars" / "late.jar"
    there = replace(request, jars=(*(jar.replace("/opt", str(tmp_path)) for jar in request.jars), str(late)))
    launcher.check(there)
    late.parent.mkdir(parents=True)
    late.write_text("4")
    handle = launcher.launch(there)
    assert wait_for_end(launcher, handle).exit_code == 0
    folder = str(handle.data["remote_folder"])
    words = launcher.logs(handle, 10_000).splitlines()
    jars = words[words.index("--jars") + 1].split(",")
    assert [Path(jar).read_text() for jar in jars[:3]] == ["3", "1", "2"]
    assert jars[3:5] == [f"file:{tmp_path}/there.jar", "https://example.com/x.jar"]
    assert (Path(jars[5]).name, Path(jars[5]).read_text()) == ("late.jar", "4")
    assert all(jar.startswith(folder) for jar in (*jars[:3], jars[5]))
    path, _, alias = words[words.index("--files") + 1].partition("#")
    assert (Path(path).read_text(), alias) == ("d", "table.csv")
    assert any(Path(item).read_text() == "x" for item in words[words.index("--py-files") + 1].split(",")[1:])
    config = json.loads((Path(folder) / DRIVER_CONFIG).read_text())
    assert Path(config["application"]).read_text() == "print('job')"
    assert (Path(config["application"]).parent / "lib/mod.py").read_text() == "m"
    assert str(here) not in (Path(folder) / DRIVER_CONFIG).read_text() + (Path(folder) / PROPERTIES).read_text()


@contextmanager
def watched_command_lines() -> Iterator[set[str]]:
    """Every command line of this machine that was seen while this runs."""
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(path.read_text("utf-8", "replace"))
                except OSError:
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def test_secrets_are_on_no_command_line_and_in_no_log(server: Sshd, tmp_path: Path) -> None:
    """They go by standard input into files for their owner only, and leave the host when the launch is forgotten."""
    request = ssh_request(
        server,
        tmp_path,
        RUNS_ON,
        conf={"spark.hadoop.fs.s3a.secret.key": SECRET},
        arguments=(f"--password={SECRET}",),
        driver_config={"secrets": [SECRET]},
    )
    request = replace(request, environment={**request.environment, "PASSWORD": SECRET})
    launcher = SshLauncher(SYSTEM_CLOCK)
    with watched_command_lines() as seen:
        launcher.check(request)
        handle = launcher.launch(request)
        wait_until(lambda: starts(tmp_path) == 1, "the driver's first line")
        launcher.status(handle)
    assert any("sys.stdin.buffer.read" in line for line in seen)  # it has looked at the right time
    assert not [line for line in seen if SECRET in line]
    assert SECRET not in server.log.read_text("utf-8", "replace")
    assert SECRET not in json.dumps(handle.to_json()) + str(launcher.status(handle))
    there = tmp_path / "there"
    holding = [path for path in there.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert {path.name for path in holding} == {DRIVER_CONFIG, PROPERTIES}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
    assert stat.S_IMODE(Path(str(handle.data["remote_folder"])).stat().st_mode) == 0o700
    launcher.forget(handle)
    assert holding[0].exists(), "a driver that runs is not forgotten"
    launcher.kill(handle, 0.0)
    launcher.forget(handle)
    assert not [path for path in there.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_launch_that_is_forgotten_leaves_what_its_key_means(server: Sshd, tmp_path: Path) -> None:
    """Its end and its log are still reported, and the key starts no second driver (Law 2)."""
    launcher = SshLauncher(SYSTEM_CLOCK)
    request = ssh_request(server, tmp_path, COUNT_START + "echo said; exit 4")
    handle = launcher.launch(request)
    assert wait_for_end(launcher, handle).exit_code == 4
    launcher.forget(handle)
    launcher.forget(handle)
    left = {path.name for path in Path(str(handle.data["remote_folder"])).iterdir()}
    assert left == RECORDS
    assert launcher.status(handle).exit_code == 4
    assert launcher.logs(handle, 100) == "said\n"
    assert launcher.launch(request) == handle
    assert starts(tmp_path) == 1


def test_controllers_that_race_get_one_driver(server: Sshd, tmp_path: Path) -> None:
    """From several processes that have no connection yet, on a host that has not our code yet (Law 2)."""
    request = json.dumps(ssh_request(server, tmp_path, RUNS_ON).to_json())
    callers = [caller("launch_once.py", request) for _ in range(4)]
    answers = {process.communicate(timeout=120)[0] for process in callers}
    assert [process.returncode for process in callers] == [0] * 4
    assert len(answers) == 1
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    assert starts(tmp_path) == 1
    code = tmp_path / "there" / "code"
    assert len(list(code.iterdir())) == 1, "the code of one version is there once, and nothing half written"
    handle = LaunchHandle.from_json(json.loads(answers.pop()))
    assert SshLauncher(SYSTEM_CLOCK).kill(handle, 0.0).has_ended


def test_code_that_was_damaged_is_sent_anew(server: Sshd, tmp_path: Path) -> None:
    """By a host that lost its power before all was on its disk, or by a hand."""
    launcher = SshLauncher(SYSTEM_CLOCK)
    request = ssh_request(server, tmp_path, COUNT_START + "exit 8")
    launcher.check(request)
    (code,) = (tmp_path / "there" / "code").iterdir()
    for damage in (lambda path: path.write_bytes(b""), lambda path: path.unlink()):
        damage(code / "airflow_streamstate" / "errors.py")
        launcher.check(request)
    assert wait_for_end(launcher, launcher.launch(request)).exit_code == 8
    assert list((tmp_path / "there" / "code").iterdir()) == [code]


def test_a_caller_that_dies_at_any_word_leaves_one_driver_at_most(server: Sshd, tmp_path: Path) -> None:
    """Killed at each step of the conversation: the same call again gives the one driver (Laws 1 and 2)."""
    launcher = SshLauncher(SYSTEM_CLOCK)
    died = 0
    for word in range(1, 20):
        base = tmp_path / str(word)
        base.mkdir()
        request = ssh_request(server, base, RUNS_ON)
        request = replace(request, options={**request.options, "work_dir": str(tmp_path / "there" / str(word))})
        process = caller("ssh_crash.py", str(word), json.dumps(request.to_json()))
        process.communicate(timeout=120)
        if process.returncode == 0:
            break
        died += 1
        handle = launcher.launch(request)
        wait_until(lambda base=base: starts(base) > 0, "the driver's first line")
        assert launcher.status(handle).state == "running"
        assert launcher.find(request.place) == handle
        assert launcher.kill(handle, 0.0).has_ended
        assert starts(base) == 1, word
    assert died >= 4, "it was asked for the code, the request and the files, and was answered"


def test_two_streams_never_meet(server: Sshd, tmp_path: Path) -> None:
    """The same key in two scopes is two drivers, each found by its own scope only."""
    launcher = SshLauncher(SYSTEM_CLOCK)
    one = ssh_request(server, tmp_path, RUNS_ON)
    other = replace(one, scope="h-1/other")
    handle = launcher.launch(one)
    assert launcher.find(other.place) is None
    second = launcher.launch(other)
    assert handle.data["remote_folder"] != second.data["remote_folder"]
    assert launcher.kill(handle, 0.0).has_ended
    assert launcher.status(second).state == "running"
    assert launcher.kill(second, 0.0).has_ended


def test_more_questions_than_sessions_are_all_answered(server: Sshd, tmp_path: Path) -> None:
    """A host allows few sessions on a connection: further ones get their own connection."""
    launcher = SshLauncher(SYSTEM_CLOCK)
    handle = launcher.launch(ssh_request(server, tmp_path, COUNT_START + "trap '' TERM\nwhile :; do sleep 0.1; done"))
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    found: list[LaunchStatus] = []
    killers = [threading.Thread(target=lambda: found.append(launcher.kill(handle, 3.0))) for _ in range(SESSIONS)]
    askers = [threading.Thread(target=lambda: found.append(launcher.status(handle))) for _ in range(3)]
    for thread in (*killers, *askers):
        thread.start()
    for thread in (*killers, *askers):
        thread.join(120)
    assert len(found) == SESSIONS + 3
    assert [status.reason for status in found if status.state == "unknown"] == []
    assert launcher.status(handle).has_ended


def test_a_host_that_was_started_anew_has_no_driver_of_before(server: Sshd, tmp_path: Path) -> None:
    """By the boot id: gone. By another name of the machine behind the address: unknown."""
    launcher = SshLauncher(SYSTEM_CLOCK)
    handle = launcher.launch(ssh_request(server, tmp_path, RUNS_ON))
    folder = Path(str(handle.data["remote_folder"]))
    facts = json.loads((folder / HANDLE).read_text())
    (folder / HANDLE).write_text(json.dumps({**facts, "boot_id": "before", "host": "another"}))
    assert launcher.status(handle).state == "unknown"
    (folder / HANDLE).write_text(json.dumps({**facts, "boot_id": "before"}))
    assert launcher.status(handle).state == "gone"
    (folder / HANDLE).write_text(json.dumps(facts))
    assert launcher.kill(handle, 0.0).has_ended
    assert living_processes(str(folder)) == []
