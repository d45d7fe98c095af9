"""What a master URL means, and whether a standalone master answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.launch.submit_options import (
    SETTING,
    addresses_of,
    check_master,
    check_master_answers,
    is_on_this_machine,
    own_disk_note,
)
from support.launches import launch_request


@pytest.fixture
def listening() -> Iterator[int]:
    """The port of something that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
def silent() -> Iterator[int]:
    """A reserved port on which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[2]",
        "local[*,3]",
        "local-cluster[2,1,1024]",
        "spark://h:7077",
        "spark://a:1,b:2",
        "yarn",
        "k8s://h",
    ],
)
def test_masters_that_spark_knows_pass(master: str) -> None:
    """Every kind that spark-submit takes."""
    check_master(master)


@pytest.mark.parametrize(
    "master",
    [
        "",
        "locl[2]",
        "local[0]",
        "local[two]",
        "local[2",
        "local-cluster[2]",
        "localhost",
        "spark://",
        "spark://host",
        "spark:host:7077",
        "mesos://h",
    ],
)
def test_others_are_refused(master: str) -> None:
    """Before a JVM has started for them."""
    with pytest.raises(InvalidRequestError, match="not a master that Spark knows"):
        check_master(master)


def test_a_standalone_cluster_may_have_several_masters() -> None:
    """Each of them has an address; another kind of master has none to ask."""
    assert addresses_of("spark://a:7077,[fd00::1]:7078") == (("a", 7077), ("fd00::1", 7078))
    assert addresses_of("k8s://https://h:443") == ()


@pytest.mark.parametrize(
    ("master", "is_here"),
    [
        ("local[*]", True),
        ("spark://localhost:7077", True),
        ("spark://127.0.0.1:7077,[::1]:7077", True),
        ("spark://127.0.0.1:7077,other:7077", False),
        ("spark://other:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:443", False),
    ],
)
def test_where_a_job_runs_is_said_by_its_master(master: str, is_here: bool) -> None:
    """Only a master in the process, or one on loopback, has all its executors here."""
    assert is_on_this_machine(master) is is_here


def test_a_master_that_is_down_is_told_before_a_driver_starts(tmp_path: Path, silent: int, listening: int) -> None:
    """In one sentence with the next step, instead of a minute and a half of Spark's own tries; one of several does."""
    launcher = LocalLauncher(SYSTEM_CLOCK, environ={})
    request = launch_request(tmp_path, "", master=f"spark://127.0.0.1:{silent}")
    with pytest.raises(UnavailableError, match="the master of the cluster does not answer") as caught:
        launcher.check(request)
    assert "connection refused" in str(caught.value)
    assert f"{SETTING}=none" in caught.value.next_step
    assert not Path(request.folder).exists()
    launcher.check(launch_request(tmp_path, "", master=f"spark://127.0.0.1:{silent},127.0.0.1:{listening}"))


def test_a_master_that_a_given_command_names_is_asked_too(tmp_path: Path, silent: int) -> None:
    """An Airflow connection's command names its master itself."""
    request = launch_request(tmp_path, "")
    submit = (*(request.spark_submit or ()), "--master", f"spark://127.0.0.1:{silent}")
    with pytest.raises(UnavailableError):
        LocalLauncher(SYSTEM_CLOCK, environ={}).check(launch_request(tmp_path, "", master="", spark_submit=submit))


def test_a_master_that_only_the_driver_reaches_is_not_asked(tmp_path: Path, silent: int) -> None:
    """By a setting, which has no other values."""
    launcher = LocalLauncher(SYSTEM_CLOCK, environ={})
    master = f"spark://127.0.0.1:{silent}"
    launcher.check(launch_request(tmp_path, "", master=master, conf={SETTING: "none"}))
    with pytest.raises(InvalidRequestError, match="no such value"):
        launcher.check(launch_request(tmp_path, "", master=master, conf={SETTING: "never"}))


def test_a_port_that_is_none_does_not_answer() -> None:
    """It is reported like one that is silent."""
    with pytest.raises(UnavailableError, match="does not answer"):
        check_master_answers("spark://127.0.0.1:99999", {})


MOUNTS = "/dev/sda1 / ext4 rw 0 0\nnas:/data /mnt/nas\\040one nfs4 rw 0 0\ns3fs /mnt/bucket fuse.s3fs rw 0 0\n"


@pytest.mark.parametrize(
    ("master", "folder", "is_told"),
    [
        ("spark://other:7077", "/data/checkpoints", True),
        ("yarn", "/data/checkpoints", True),
        ("local[*]", "/data/checkpoints", False),
        ("spark://127.0.0.1:7077", "/data/checkpoints", False),
        ("spark://other:7077", "/mnt/nas one/checkpoints", False),
        ("spark://other:7077", "/mnt/bucket", False),
        ("spark://other:7077", "/mnt", True),
    ],
)
def test_checkpoints_on_a_disk_that_executors_do_not_have_are_told(
    tmp_path: Path, master: str, folder: str, is_told: bool
) -> None:
    """By name, with where to put them; not where all is on one machine, nor on a file system that machines share."""
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    note = own_disk_note(master, Path(folder), mounts)
    assert bool(note) is is_told
    assert not note or (folder in note and master in note)


def test_without_a_list_of_mounts_a_folder_counts_as_of_this_machine(tmp_path: Path) -> None:
    """Where nothing can be seen, the warning is given."""
    assert own_disk_note("yarn", tmp_path, tmp_path / "nosuch") != ""
