"""Checks of what any launcher has to promise (``check_launcher``), without a test framework.

Each of ``PROMISES`` is one part of it, for a test per part. They launch real drivers, a dozen and a half in all, each
with a short Python program instead of a stream's script, which reports by files. A promise that a launcher cannot keep
in principle is listed in its ``limits``.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import ConflictError, InvalidRequestError, UntrustedRecordError
from airflow_streamstate.launch.interface import LOCAL, Launcher, LaunchHandle, LaunchRequest, LaunchStatus

KEY = "d-0001-a0001"
OTHER_KEY = "d-0001-a0002"
POLL_SECONDS = 0.1
RACERS = 4
_NEVER_ENDS = "while not there('end'):\n    time.sleep(0.05)\nsys.exit(5)\n"
_IGNORES = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
    while True:
        say("works")
        time.sleep(0.05)
say("runs")
time.sleep(600)
"""
_FREEZES = """
def freeze(pid):
    os.kill(pid, signal.SIGSTOP)

if os.fork() == 0:
    os.setpgid(0, 0)
    say("freezes")
    freeze(os.getpid())
    time.sleep(600)
with open(f"/proc/{os.getppid()}/comm") as file:
    starter = file.read().strip()
if starter == "java":
    freeze(os.getppid())
say("freezes")
freeze(os.getpid())
time.sleep(600)
"""
_PRELUDE = """
import os, signal, sys, time

FOLDER = {folder!r}

def say(word):
    with open(os.path.join(FOLDER, {key!r} + "." + word), "a") as file:
        file.write("x\\n")

def there(word):
    return os.path.exists(os.path.join(FOLDER, {key!r} + "." + word))

say("starts")
"""


class LauncherStage(Protocol):
    """A launcher, and what a test of it must be able to do; empty at the beginning of each promise.

    Attributes:
        clock: for waits.
        folder: an empty folder that test and drivers see at the same path.
        patience_seconds: how long a driver may take to start, or to end.
    """

    clock: Clock
    folder: Path
    patience_seconds: float

    def launcher(self) -> Launcher:
        """A new one, as another controller would create it, with the same access."""

    def request(self, launch_key: str, program: str, scope: str = "") -> LaunchRequest:
        """A request whose driver runs this Python text as its program.

        Args:
            scope: as of ``LaunchPlace``; "" for one of the stage.
        """

    def lacking_request(self, launch_key: str) -> LaunchRequest:
        """One whose image, package or jar is not there; only the cluster finds that."""

    def roomless_request(self, launch_key: str) -> LaunchRequest:
        """One for which the cluster has no room, now or ever."""

    def shown(self, handle: LaunchHandle) -> str:
        """What other users can read of this driver: command lines, objects of the cluster, …"""

    def left_behind(self) -> list[str]:
        """What the cluster still has of the stage's drivers: processes, objects, folders, tags."""

    def impossible_request(self, launch_key: str) -> LaunchRequest:
        """One that the launcher must refuse."""

    def launch_and_die(self, request: LaunchRequest) -> None:
        """Launch from a process that is killed as soon as ``launch`` has returned."""

    def out_of_reach(self, handle: LaunchHandle) -> AbstractContextManager[LaunchHandle]:
        """In the block this driver cannot be asked: its cluster or machine is silent. Gives the handle to ask with."""


Promise = Callable[[LauncherStage], None]


def check_launcher(new_stage: Callable[[], LauncherStage]) -> None:
    """Check what ``Launcher`` promises; AssertionError names the promise that is broken.

    Args:
        new_stage: makes an empty stage; called once for each promise.
    """
    for promise in PROMISES:
        stage = new_stage()
        if promise.__name__ not in stage.launcher().limits:
            promise(stage)


def ends_are_told(stage: LauncherStage) -> None:
    """Every later caller gets exit status and log of a driver; nothing starts it again (Law 2)."""
    launcher = stage.launcher()
    good = launcher.launch(_request(stage, KEY, "print('first')\nprint('größer', flush=True)\nsys.exit(0)\n"))
    bad_request = _request(stage, OTHER_KEY, "print('wrong', file=sys.stderr, flush=True)\nsys.exit(3)\n")
    bad = launcher.launch(bad_request)
    for handle, code in ((good, 0), (bad, 3)):
        status = _ended(stage, stage.launcher(), handle)
        _need((status.state, status.exit_code) == ("exited", code), f"an exit status of {code} is reported as {status}")
        _need(status.has_ended, "a driver that has exited has not ended")
        _need(LaunchStatus.from_json(status.to_json()) == status, "a status does not survive JSON")
    logs = launcher.logs(good, 1 << 20)
    _need(logs.find("first") < logs.find("größer"), f"the log does not hold what the driver wrote: {logs[-500:]!r}")
    _need("wrong" in launcher.logs(bad, 1 << 20), "the log does not hold what the driver wrote to stderr")
    _need(len(launcher.logs(bad, 4).encode()) <= 4, "more of a log is returned than was asked for")
    _need(launcher.logs(bad, 0) == "", "a log of no bytes is not empty")
    again = stage.launcher().launch(bad_request)
    _need(again == bad, "a launch that is tried again after the driver's end has another handle")
    _need(stage.launcher().status(again).exit_code == 3, "a launch that is tried again hides the driver's end")
    _need(_count(stage, OTHER_KEY, "starts") == 1, "a driver that has ended was started again")
    killed = stage.launcher().kill(bad, 0.0)
    _need((killed.state, killed.exit_code) == ("exited", 3), "killing what has ended changes how it ended")


def one_key_is_one_driver(stage: LauncherStage) -> None:
    """Every launch of a key gets the one driver, which runs until it is killed (Law 2)."""
    request = _request(stage, KEY, _NEVER_ENDS)
    handles: list[LaunchHandle] = []
    racers = [threading.Thread(target=lambda: handles.append(stage.launcher().launch(request))) for _ in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(stage.patience_seconds)
    _need(len(handles) == RACERS, "a launch at the same time as others did not come back with a handle")
    handle = handles[0]
    _need(all(other == handle for other in handles), f"one key has several handles: {handles}")
    _wait(stage, lambda: _count(stage, KEY, "starts") > 0, "the driver's first line")
    launcher = stage.launcher()
    _need(LaunchHandle.from_json(json.loads(json.dumps(handle.to_json()))) == handle, "a handle does not survive JSON")
    _need(handle.launcher == launcher.name, "a handle names another launcher")
    _need({launcher.status(handle).state for _ in range(3)} == {"running"}, "a driver that works is not running")
    _need(launcher.launch(request) == handle, "a key that runs is launched again")
    _need(launcher.find(request.place) == handle, "a driver is not found by its key")
    elsewhere = replace(request.place, launch_key=OTHER_KEY)
    _need(launcher.find(elsewhere) is None, "another key's driver is found")
    other = LaunchRequest.from_json({**stage.request(OTHER_KEY, "").to_json(), "folder": request.folder})
    if request.launcher == LOCAL:  # elsewhere the folder holds nothing
        _need_raises(ConflictError, lambda: launcher.launch(other), "two keys share one folder")
    with stage.out_of_reach(handle) as asked:
        _need(stage.launcher().status(asked).state == "unknown", "a driver that cannot be asked is not unknown")
        _need(not stage.launcher().kill(asked, 0.0).has_ended, "a driver that cannot be reached counts as ended")
    _need(launcher.status(handle).state == "running", "a driver that can be asked again is not running")
    status = stage.launcher().kill(handle, 5.0)
    _need(status.has_ended, f"a driver that was killed has not ended: {status}")
    _need(status.exit_code != 0, "a driver that was killed counts as ended by itself")
    again = stage.launcher().kill(handle, 0.0)
    _need((again.state, again.exit_code) == (status.state, status.exit_code), f"killed twice it is {again}")
    _need(launcher.launch(request) == handle, "a key that was killed is launched again")
    _need(_count(stage, KEY, "starts") == 1, "one key has started several drivers")


def a_caller_may_die(stage: LauncherStage) -> None:
    """A driver whose caller died before it recorded the handle lives on, and is found by its key (Law 1)."""
    request = _request(stage, KEY, _NEVER_ENDS)
    stage.launch_and_die(request)
    launcher = stage.launcher()
    handle = launcher.find(request.place)
    if handle is None:
        raise AssertionError("a launch whose caller died is not found")
    _need(launcher.launch(request) == handle, "a launch whose caller died is launched again")
    _wait(stage, lambda: _count(stage, KEY, "starts") > 0, "the driver's first line")
    _need(launcher.status(handle).state == "running", "a driver does not outlive its caller")
    (stage.folder / f"{KEY}.end").touch()
    status = _ended(stage, launcher, handle)
    _need((status.state, status.exit_code) == ("exited", 5), f"the end of an orphaned driver is reported as {status}")
    _need(_count(stage, KEY, "starts") == 1, "a launch whose caller died has started two drivers")


def a_kill_ends_everything(stage: LauncherStage) -> None:
    """The driver's processes end, even those that ignore signals, and nothing counts as ended before (1a.8)."""
    launcher = stage.launcher()
    handle = launcher.launch(_request(stage, KEY, _IGNORES))
    _wait(stage, lambda: _count(stage, KEY, "runs") > 0 and _count(stage, KEY, "works") > 0, "driver and child")
    status = launcher.kill(handle, 0.5)
    _need(status.has_ended, f"a driver that ignores signals has not ended: {status}")
    worked = _count(stage, KEY, "works")
    stage.clock.sleep(1.0)
    _need(_count(stage, KEY, "works") == worked, "a process of the driver outlives its end")


def a_frozen_driver_is_ended(stage: LauncherStage) -> None:
    """A driver whose processes are frozen, JVM included, counts as running until it is ended; a kill ends it."""
    launcher = stage.launcher()
    handle = launcher.launch(_request(stage, KEY, _FREEZES))
    _wait(stage, lambda: _count(stage, KEY, "freezes") == 2, "driver and child")
    stage.clock.sleep(1.0)
    status = launcher.status(handle)
    _need(status.state == "running", f"a driver that is frozen is reported as {status}")
    launcher.kill(handle, 0.5)
    status = _over(stage, stage.launcher(), handle)
    _need(status.exit_code != 0, "a driver that was frozen and killed counts as ended by itself")


def a_driver_that_fails_at_once_is_told(stage: LauncherStage) -> None:
    """A program that no Python can run is a driver that has ended, without success."""
    launcher = stage.launcher()
    handle = launcher.launch(stage.request(KEY, "this is no Python\n"))
    status = _ended(stage, launcher, handle)
    _need(status.exit_code != 0, "a driver that could not start counts as ended by itself")
    _need(bool(status.reason), "a driver that could not start has no reason")


def what_cannot_run_is_refused(stage: LauncherStage) -> None:
    """Before anything is started: neither ``check`` nor ``launch`` leaves a trace."""
    request = stage.impossible_request(KEY)
    launcher = stage.launcher()
    _need(launcher.find(request.place) is None, "a launch is found where nothing started")
    _need_raises(InvalidRequestError, lambda: launcher.check(request), "check accepts what cannot run")
    _need_raises(InvalidRequestError, lambda: launcher.launch(request), "launch accepts what cannot run")
    _need(launcher.find(request.place) is None, "a refused launch is found")


def a_kill_is_told_from_a_failure(stage: LauncherStage) -> None:
    """A driver that the kernel or a person has killed has no exit status."""
    launcher = stage.launcher()
    handle = launcher.launch(_request(stage, KEY, "os.kill(os.getpid(), signal.SIGKILL)\n"))
    status = _over(stage, launcher, handle)
    _need(status.exit_code not in (0, 1), f"a driver that was killed with -9 is reported as {status}")
    _need(bool(status.reason), "a driver that was killed has no reason")


def logs_come_while_it_runs_and_after(stage: LauncherStage) -> None:
    """The log can be read while the driver runs, and after its end."""
    launcher = stage.launcher()
    handle = launcher.launch(_request(stage, KEY, "print('at work', flush=True)\n" + _NEVER_ENDS))
    _wait(stage, lambda: "at work" in launcher.logs(handle, 1 << 20), "the driver's words while it runs")
    (stage.folder / f"{KEY}.end").touch()
    _ended(stage, launcher, handle)
    _wait(stage, lambda: "at work" in stage.launcher().logs(handle, 1 << 20), "the driver's words after its end")
    links = launcher.links(handle)
    _need(all(url.startswith(("http://", "https://")) for url in links.values()), f"a link is no URL: {links}")


def scopes_never_meet(stage: LauncherStage) -> None:
    """Drivers of two streams with the same launch key never meet, however long the names of the streams are."""
    launcher = stage.launcher()
    scopes = [f"1b4e28ba-2fa1-11d2-883f-0016d3cca427/{'s' * 62}{end}" for end in "ab"]
    first, second = (
        launcher.launch(_request(stage, KEY, f"say('of-{scope[-1]}')\n{_NEVER_ENDS}", scope)) for scope in scopes
    )
    _wait(stage, lambda: all(_count(stage, KEY, f"of-{end}") == 1 for end in "ab"), "both drivers")
    _need(launcher.kill(first, 1.0).state != "running", "a driver that was killed runs")
    _need(launcher.status(second).state == "running", "the driver of another stream was killed, too")
    for scope, handle in zip(scopes, (first, second), strict=True):
        found = launcher.find(stage.request(KEY, "", scope).place)
        _need(found == handle, f"the driver of one stream is found for another: {found}")
    launcher.kill(second, 1.0)


def secrets_are_not_shown(stage: LauncherStage) -> None:
    """What the request keeps secret is read by its driver, and by no other user."""
    launcher, secret = stage.launcher(), "correct-horse-battery-staple"
    program = f"say('got') if os.environ.get('TOKEN', '').startswith('correct-horse') else say('missed')\n{_NEVER_ENDS}"
    request = _request(stage, KEY, program)
    config = {**request.driver_config, "secrets": [secret]}
    request = replace(request, environment={**request.environment, "TOKEN": secret}, driver_config=config)
    handle = launcher.launch(request)
    _wait(stage, lambda: _count(stage, KEY, "got") + _count(stage, KEY, "missed") > 0, "the driver's first line")
    _need(_count(stage, KEY, "got") == 1, "a secret variable does not reach the driver")
    told = (
        f"{handle.to_json()} {launcher.status(handle).reason} {launcher.links(handle)} {launcher.logs(handle, 1 << 20)}"
    )
    _need(secret not in stage.shown(handle), "other users can read a secret of the driver")
    _need(secret not in told, "the launcher shows a secret of the driver")
    launcher.kill(handle, 1.0)


def what_is_lacking_is_told(stage: LauncherStage) -> None:
    """A driver whose image, package or jar is not there ends, or waits, with a reason, and can be withdrawn."""
    launcher = stage.launcher()
    handle = launcher.launch(stage.lacking_request(KEY))

    def is_told() -> bool:
        status = launcher.status(handle)
        return bool(status.reason) and (status.state == "pending" or status.has_ended or status.reported_end)

    _wait(stage, is_told, "the reason")
    _need(launcher.status(handle).exit_code != 0, "a driver that lacks a file counts as ended by itself")
    launcher.kill(handle, 0.0)
    _over(stage, launcher, handle)
    _need(_count(stage, KEY, "starts") == 0, "a driver that lacks a file has started")


def no_room_is_pending(stage: LauncherStage) -> None:
    """Without room a driver waits, with the reason; withdrawn, it leaves nothing and never starts."""
    launcher = stage.launcher()
    handle = launcher.launch(stage.roomless_request(KEY))
    _wait(
        stage, lambda: launcher.status(handle).state == "pending" and bool(launcher.status(handle).reason), "the reason"
    )
    _need(launcher.kill(handle, 0.0).state != "running", "a driver without room runs after it was withdrawn")
    _over(stage, launcher, handle)
    launcher.forget(handle)
    _wait(stage, lambda: not stage.left_behind(), f"that nothing is left: {stage.left_behind()}")
    _need(_count(stage, KEY, "starts") == 0, "a driver that was withdrawn has started")


def a_forged_place_is_not_followed(stage: LauncherStage) -> None:
    """A record names the run and nothing else: whatever else it states is refused, or has no effect."""
    launcher = stage.launcher()
    request = _request(stage, KEY, _NEVER_ENDS)
    handle = launcher.launch(request)
    own = stage.launcher().handle_at(request.place, handle)
    _wait(stage, lambda: launcher.status(own).state == "running", "that the driver runs")
    for data in _forged(handle.data):
        try:
            found = stage.launcher().handle_at(request.place, replace(handle, data=data))
        except UntrustedRecordError:
            continue
        _need(found == own, f"a forged record is followed: {data}")
    for other in (replace(handle, launch_key=OTHER_KEY), replace(handle, launcher="other")):
        taken = functools.partial(launcher.handle_at, request.place, other)
        _need_raises(UntrustedRecordError, taken, "the record of another launch is taken")
    _need(launcher.kill(own, 1.0).state != "running", "a driver that was killed runs")


def nothing_is_left_behind(stage: LauncherStage) -> None:
    """After an end ``forget`` removes what the cluster has of a driver, and nothing of one that runs."""
    launcher = stage.launcher()
    handle = launcher.launch(_request(stage, KEY, _NEVER_ENDS))
    _wait(stage, lambda: _count(stage, KEY, "starts") > 0, "the driver's first line")
    launcher.forget(handle)
    _need(launcher.status(handle).state == "running", "a driver that runs was forgotten")
    (stage.folder / f"{KEY}.end").touch()
    _ended(stage, launcher, handle)
    launcher.forget(handle)
    launcher.forget(handle)
    _wait(stage, lambda: not stage.left_behind(), f"that nothing is left: {stage.left_behind()}")


PROMISES: tuple[Promise, ...] = (
    ends_are_told,
    one_key_is_one_driver,
    a_caller_may_die,
    a_kill_ends_everything,
    a_frozen_driver_is_ended,
    a_driver_that_fails_at_once_is_told,
    what_cannot_run_is_refused,
    a_kill_is_told_from_a_failure,
    logs_come_while_it_runs_and_after,
    scopes_never_meet,
    secrets_are_not_shown,
    what_is_lacking_is_told,
    no_room_is_pending,
    a_forged_place_is_not_followed,
    nothing_is_left_behind,
)


def _request(stage: LauncherStage, key: str, program: str, scope: str = "") -> LaunchRequest:
    return stage.request(key, _PRELUDE.format(folder=str(stage.folder), key=key) + program, scope)


def _forged(data: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """The data with one value forged, each in turn, and with an odd one."""
    for name, value in data.items():
        odd: tuple[object, ...] = ("../../forged", 7, None, [{}], {"forged": 1})
        for forged in odd:
            yield {**data, name: forged}
        if isinstance(value, Mapping):
            yield from ({**data, name: inner} for inner in _forged(value))


def _count(stage: LauncherStage, key: str, word: str) -> int:
    path = stage.folder / f"{key}.{word}"
    return len(path.read_text().splitlines()) if path.exists() else 0


def _ended(stage: LauncherStage, launcher: Launcher, handle: LaunchHandle) -> LaunchStatus:
    _wait(stage, lambda: launcher.status(handle).has_ended, "the end of a driver")
    return launcher.status(handle)


def _over(stage: LauncherStage, launcher: Launcher, handle: LaunchHandle) -> LaunchStatus:
    """The status once the end is proven, or reported by a cluster that cannot prove it."""

    def is_over() -> bool:
        status = launcher.status(handle)
        return status.has_ended or status.reported_end

    _wait(stage, is_over, "the end of a driver")
    return launcher.status(handle)


def _wait(stage: LauncherStage, is_so: Callable[[], bool], what: str) -> None:
    deadline = stage.clock.monotonic_seconds() + stage.patience_seconds
    while not is_so():
        _need(stage.clock.monotonic_seconds() < deadline, f"waited {stage.patience_seconds:g} s for {what}")
        stage.clock.sleep(POLL_SECONDS)


def _need_raises(error: type[Exception], act: Callable[[], object], otherwise: str) -> None:
    try:
        act()
    except error:
        return
    raise AssertionError(otherwise)


def _need(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(otherwise)
