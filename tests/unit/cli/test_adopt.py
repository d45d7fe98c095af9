"""``adopt`` in the shell: its JSON, and mistakes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.cli.start import _ended_in_order
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.store.local import LocalStore
from support.launches import wait_until
from support.scripted_driver import script
from support.shell import Desk, shell
from support.snapshots import plan_stateful, run_stateful

FIELDS = {"stream_id", "deployment_id", "attempt", "state", "start", "notes", "adopted"}


@pytest.fixture
def foreign(desk: Desk) -> Path:
    """A foreign checkpoint."""
    run_stateful(Checkpoint(LocalStore(desk.base / "mine"), "counts"), 3)
    return desk.base / "mine" / "counts"


def test_a_stopped_query_is_adopted(desk: Desk, foreign: Path) -> None:
    """One JSON object each; the human-readable output also reports how it starts."""
    words = ("adopt", "flights", "--checkpoint", foreign, "--app", script(desk.base), "--stopped", "--async")
    found = shell(*words, "--json")
    assert found.status == 0, found
    assert set(found.json) == FIELDS
    assert found.json["adopted"]["queries"]["counts"]["batch_id"] == 3
    assert shell("snapshot", "verify", "flights", found.json["adopted"]["snapshot_id"]).status == 0
    again = shell(*words)
    assert "d-0002" in again.out + again.err
    assert shell("kill", "flights").status == 0


def test_what_came_to_nothing_is_given_up(desk: Desk, foreign: Path) -> None:
    """One JSON object, and a human-readable line."""
    words = ("adopt", "flights", "--checkpoint", foreign, "--app", script(desk.base), "--deadline", 1)
    assert shell(*words).status == 3
    given = shell("adopt", "flights", "--give-up", "--json", "--async")
    assert given.json == {"stream_id": "flights", "given_up": {"counts": str(foreign)}, "missing": {}, "retired": False}
    assert "counts may be started again" in shell("adopt", "flights", "--give-up", "--async").out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--checkpoint", "{foreign}"), 2, "--app"),
        (("--app", "{app}"), 2, "--checkpoint"),
        (("--give-up", "--app", "{app}"), 2, "leave out --checkpoint"),
        (("--give-up",), 2, "there is no home here"),
        (("--checkpoint", "{foreign}/x", "--app", "{app}"), 2, "there is no checkpoint there"),
        (("--checkpoint", "hdfs://x/y", "--app", "{app}"), 2, "no store that is known"),
        (("--checkpoint", "{foreign}", "--app", "{app}x"), 2, "cannot be read"),
        (("--checkpoint", "{foreign}", "--app", "{app}", "--deadline", "0"), 2, "number of seconds"),
        (("--checkpoint", "{foreign}", "--app", "{app}", "--deadline", "1"), 3, "idle"),
    ],
)
def test_mistakes_are_one_sentence(desk: Desk, foreign: Path, words: tuple[str, ...], status: int, said: str) -> None:
    """With what to do; nothing of the checkpoint is changed."""
    before = sorted(path.name for path in foreign.rglob("*"))
    answer = shell(
        "adopt", "flights", *(word.format(foreign=foreign, app=script(desk.base)) for word in words), "--async"
    )
    assert (answer.status, said in answer.err) == (status, True), answer
    assert sorted(path.name for path in foreign.rglob("*")) == before


def test_who_ends_it_politely_finds_no_barrier(desk: Desk, foreign: Path) -> None:
    """As ctrl-c does: a scheduler or a shutdown must not leave the query barred. (Law 12)"""
    checkpoint = Checkpoint(LocalStore(desk.base / "mine"), "counts")
    barred = threading.Event()

    def run_batch() -> None:
        wait_until(lambda: (desk.home / "flights" / "adoption.json").exists(), "the adoption to be recorded", 30)
        while checkpoint.store.head(checkpoint.offset_key(5)) is None:
            if checkpoint.store.head(checkpoint.offset_key(4)) is None:
                SYSTEM_CLOCK.sleep(0.5)  # after its first poll
                plan_stateful(checkpoint, 4)
            SYSTEM_CLOCK.sleep(0.05)
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            barred.set()
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run_batch)
    thread.start()
    answer = shell("adopt", "flights", "--checkpoint", foreign, "--app", script(desk.base), "--deadline", 20)
    thread.join()
    assert barred.is_set()
    assert answer.status != 0
    position = checkpoint.position()
    assert (position.planned_id, position.barriers) == (4, ())


def test_a_second_signal_does_not_end_the_taking_back() -> None:
    """An init system sends two, one right behind the other; afterwards they mean what they meant before. (Law 12)"""
    before, undone = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)], []
    with pytest.raises(KeyboardInterrupt), _ended_in_order():  # noqa: PT012 - the second one comes in the ``finally``
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            SYSTEM_CLOCK.sleep(5)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            SYSTEM_CLOCK.sleep(0.05)
            undone.append(True)
    assert undone == [True]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_a_checkpoint_on_another_machine_is_not_taken_for_removed(desk: Desk, foreign: Path) -> None:
    """Its barrier would stay; if its folder is there without it, it was removed. (Law 12)"""
    words = ("adopt", "flights", "--checkpoint", foreign, "--app", script(desk.base), "--deadline", 1)
    assert shell(*words).status == 3
    foreign.parent.rename(desk.base / "elsewhere")
    answer = shell("adopt", "flights", "--give-up", "--async")
    assert (answer.status, "this machine has no such folder" in answer.err) == (4, True), answer
    foreign.parent.mkdir()
    assert "there is no checkpoint at" in shell("adopt", "flights", "--give-up", "--async").out
