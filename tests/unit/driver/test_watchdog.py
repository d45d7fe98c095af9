from __future__ import annotations

import threading

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.driver.main import LOST_JVM_STATUS, is_child_of_jvm, watch_parent


class _QuickClock(type(SYSTEM_CLOCK)):
    """Real but impatient."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / 50)


def test_a_python_whose_jvm_is_gone_ends_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """An orphan would write heartbeats for a query that no longer runs."""
    parent = [100]
    ended = threading.Event()
    statuses: list[int] = []

    def end_process(status: int) -> None:
        statuses.append(status)
        ended.set()

    thread = watch_parent(_QuickClock(), end_process, lambda: parent[0])
    assert thread.daemon
    assert not ended.wait(0.1)
    parent[0] = 1
    assert ended.wait(5)
    thread.join(5)
    assert statuses == [LOST_JVM_STATUS]
    assert "JVM is gone" in capsys.readouterr().err


def test_only_a_child_of_spark_submit_watches_its_parent() -> None:
    """A python that started its JVM itself has a shell or a test for a parent."""
    assert is_child_of_jvm({"PYSPARK_GATEWAY_PORT": "4711"})
    assert not is_child_of_jvm({"PATH": "/bin"})
