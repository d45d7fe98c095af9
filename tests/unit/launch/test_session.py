"""What can be known of a session from where. Its end, ``tests/contract/launch`` shows on real processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.launch.folder import LaunchFolder
from airflow_streamstate.launch.processes import Session, read_stat, this_machine

SessionOf = Callable[..., Session]


@pytest.fixture
def session_of() -> Iterator[SessionOf]:
    """The session of our own living process, with other facts.

    Not of this one: under a container's init, a test run may belong to a session that has no pid here.
    """
    leader = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        stat = read_stat(leader.pid)
        assert stat is not None

        def session(base: Path, **changes: object) -> Session:
            facts = {**asdict(this_machine()), "pid": leader.pid, "start_ticks": stat.start_ticks, "locked": False}
            return Session.from_facts(LaunchFolder(base), {**facts, **changes})

        yield session
    finally:
        leader.kill()
        leader.wait()


@pytest.mark.parametrize(
    ("changes", "alive", "words"),
    [
        ({"start_ticks": 1}, False, "it was killed"),
        ({"boot_id": "b"}, False, "restarted"),
        ({"boot_id": "b", "host": "h"}, None, "another machine (h)"),
        ({"boot_id": ""}, None, "another machine"),
        ({"pid_namespace": "pid:[1]"}, None, "another container"),
        ({"pid_namespace": "pid:[1]", "locked": True}, None, "another container"),
    ],
    ids=str,
)
def test_dead_is_said_only_with_proof(
    tmp_path: Path, session_of: SessionOf, changes: dict[str, object], alive: bool | None, words: str
) -> None:
    """Another start under the same pid and another boot of this host are proof; not being able to ask is none."""
    life = session_of(tmp_path, **changes).is_alive()
    assert life.is_alive is alive
    assert words in life.reason


def test_pids_mean_something_only_where_they_were_given(tmp_path: Path, session_of: SessionOf) -> None:
    """A session of a different pid namespace or boot is not ours to signal."""
    assert session_of(tmp_path).is_ours
    assert not session_of(tmp_path, pid_namespace="pid:[1]").is_ours
    assert not session_of(tmp_path, boot_id="b").is_ours


@pytest.mark.parametrize(
    "changes", [{"pid": None}, {"pid": "7"}, {"pid": 1}, {"pid": -7}, {"start_ticks": None}], ids=str
)
def test_a_handle_that_names_no_process_is_refused(
    tmp_path: Path, session_of: SessionOf, changes: dict[str, object]
) -> None:
    """A damaged handle never becomes a signal to init, to a group, or to everyone."""
    with pytest.raises(MalformedMessageError):
        session_of(tmp_path, **changes)
