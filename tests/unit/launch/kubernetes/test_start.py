"""The first process of a driver's pod, run as it is there, over folders of the test."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.control.objects import ASKED_TO_END
from airflow_streamstate.launch import kubernetes_pod as pods
from airflow_streamstate.launch.command import build_bundle
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.launch.kubernetes_api import KubernetesOptions
from support.launches import wait_until

SHOWS = 'echo "$@" > words; echo "$TOKEN" > token; cat driver.json > /dev/null && exit 3'


def _pod(
    base: Path, body: str, master: str = "k8s://https://127.0.0.1:1", grace_seconds: int = 60, **changes: Any
) -> list[str]:
    """The command of a pod whose ``spark-submit`` is this shell text; its folders are below ``base``."""
    script = base / "job.py"
    script.write_text("print('job')\n")
    request = LaunchRequest(
        launch_key="d-0001-a0001",
        application=str(script),
        master=master,
        folder=str(base / "launch"),
        log_path=str(base / "launch" / "driver.log"),
        scope="home/stream",
        environment={"TOKEN": "correct-horse"},
        **changes,
    )
    mount, work = base / "mount", base / "work"
    for folder in (mount, work):
        folder.mkdir()
    parts = pods.pack(request, build_bundle(request), KubernetesOptions(image="spark:1", grace_seconds=grace_seconds))
    for secret in pods.build_secrets("name", request.place, parts, "uid"):
        for key, value in secret["data"].items():
            text = base64.b64decode(value).replace(b'"/streamstate/bundle"', repr(str(mount)).encode())
            (mount / key).write_bytes(text.replace(b'"/streamstate/work"', repr(str(work)).encode()))
    submit = base / "spark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(f"#!/bin/sh\n{body}\n")
    submit.chmod(0o755)
    return [sys.executable, str(mount / pods.START)]


def _environment(base: Path) -> Mapping[str, str]:
    facts = {"POD_IP": "10.0.0.7", "POD_NAME": "streamstate-x", "POD_NAMESPACE": "streams"}
    return {**os.environ, "SPARK_HOME": str(base / "spark"), **{f"STREAMSTATE_{k}": v for k, v in facts.items()}}


def _run(base: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=_environment(base), capture_output=True, text=True, timeout=60, check=False)


def test_it_puts_the_files_there_and_ends_as_spark_submit_ends(tmp_path: Path) -> None:
    """Files for their owner only, variables by the environment, and what only the pod knows as settings."""
    done = _run(tmp_path, _pod(tmp_path, SHOWS))
    assert done.returncode == 3, done.stderr
    work = tmp_path / "work"
    words = (work / "words").read_text()
    assert "spark.driver.host=10.0.0.7" in words
    assert "spark.kubernetes.driver.pod.name=streamstate-x" in words
    assert words.rstrip().endswith("runner.py -- driver.json")
    assert "correct-horse" not in words
    assert (work / "token").read_text() == "correct-horse\n"
    assert (work / "driver.json").stat().st_mode & 0o077 == 0
    assert (work / pods.EXECUTOR_TEMPLATE).exists()


def test_settings_of_the_request_come_first(tmp_path: Path) -> None:
    """Where the user names the driver's host, it stays; one that runs in one process needs none."""
    _run(tmp_path, _pod(tmp_path, SHOWS, conf={"spark.driver.host": "mine"}))
    assert "spark.driver.host" not in (tmp_path / "work" / "words").read_text()
    other = tmp_path / "other"
    other.mkdir()
    _run(other, _pod(other, SHOWS, master="local[1]"))
    assert "--conf" not in (other / "work" / "words").read_text()


def test_a_signal_that_ended_spark_submit_is_an_exit_status(tmp_path: Path) -> None:
    """The first process of a pod cannot die of a signal that it sends itself."""
    assert _run(tmp_path, _pod(tmp_path, "kill -9 $$")).returncode == 137


def test_a_signal_to_the_pod_asks_the_driver_to_end(tmp_path: Path) -> None:
    """As when a node is drained: by the file that the driver looks for, not by a signal within its batch."""
    body = f"touch ready\nwhile [ ! -e {ASKED_TO_END} ]; do sleep 0.05; done\nexit 9"
    with subprocess.Popen(_pod(tmp_path, body), env=_environment(tmp_path)) as process:
        wait_until((tmp_path / "work" / "ready").exists, "the driver")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 9


def test_a_driver_that_does_not_end_gets_the_signal_before_the_last_one(tmp_path: Path) -> None:
    """Shortly before the kubelet kills what is left."""
    body = "trap 'exit 9' TERM\ntouch ready\nwhile true; do sleep 0.05; done"
    with subprocess.Popen(_pod(tmp_path, body, grace_seconds=1), env=_environment(tmp_path)) as process:
        wait_until((tmp_path / "work" / "ready").exists, "the driver")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 9


def test_files_of_two_callers_are_refused(tmp_path: Path) -> None:
    """Half of one bundle and half of a different one is no driver."""
    command = _pod(tmp_path, SHOWS)
    part = next((tmp_path / "mount").glob("part-*"))
    part.write_bytes(part.read_bytes()[:-1])
    done = _run(tmp_path, command)
    assert done.returncode == 70
    assert "not whole" in done.stderr
    assert not (tmp_path / "work" / "words").exists()


def test_an_image_of_spark_3_is_told(tmp_path: Path) -> None:
    """Its spark-submit does not know the options; nothing is started."""
    command = _pod(tmp_path, SHOWS)
    (tmp_path / "spark" / "jars").mkdir()
    (tmp_path / "spark" / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    done = _run(tmp_path, command)
    assert (done.returncode, "the image has spark-core_2.12-3.5.1" in done.stderr) == (70, True)
    assert not (tmp_path / "work" / "words").exists()


def test_an_image_without_spark_is_told(tmp_path: Path) -> None:
    """One sentence, with the places that were looked at."""
    command = _pod(tmp_path, SHOWS)
    (tmp_path / "spark" / "bin" / "spark-submit").unlink()
    text = (tmp_path / "mount" / pods.START).read_text().replace('"/opt/spark"', '"/nowhere"')
    (tmp_path / "mount" / pods.START).write_text(text.replace('find_spec("pyspark")', 'find_spec("nosuch")'))
    done = subprocess.run(
        command, env={**_environment(tmp_path), "PATH": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 70
    assert "no spark-submit" in done.stderr
