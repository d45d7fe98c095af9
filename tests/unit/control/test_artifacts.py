"""Pinned files (Law 15)."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_streamstate.control.artifacts import materialise, pin
from airflow_streamstate.errors import DataError, InvalidRequestError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.terms.version import Artifact
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import Fault, FaultPlan, FaultyStore


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_bytes(b"print('one')\n")
    return path


def test_what_lies_at_the_old_path_later_changes_nothing(script: Path, tmp_path: Path) -> None:
    """A deployment runs the bytes that were pinned, whatever CI puts there in the meantime (Law 15)."""
    home = MemoryStore()
    artifact = pin(home, "orders", script.name, script.read_bytes())
    script.write_bytes(b"print('two')\n")
    second = pin(home, "orders", script.name, script.read_bytes())
    assert materialise(home, "orders", artifact, tmp_path / "work").read_bytes() == b"print('one')\n"
    assert second.sha256 != artifact.sha256


def test_pinning_twice_is_pinning_once(script: Path) -> None:
    """Kept under name and sha256; the second time nothing is written (Law 2)."""
    plan = FaultPlan()
    home = FaultyStore(MemoryStore(), plan)
    artifact = pin(home, "orders", script.name, script.read_bytes())
    assert (
        artifact
        == pin(home, "orders", script.name, script.read_bytes())
        == Artifact("job.py", hashlib.sha256(script.read_bytes()).hexdigest())
    )
    assert len(plan.writes) == 1


def test_two_pins_of_the_same_bytes_at_once_do_not_disturb_each_other(script: Path) -> None:
    """A rival that comes between look and create wrote the same bytes (Law 2)."""
    home = MemoryStore()
    plan = FaultPlan(meanwhile={2: lambda: pin(home, "orders", script.name, script.read_bytes())})
    assert pin(FaultyStore(home, plan), "orders", script.name, script.read_bytes()) == pin(
        home, "orders", script.name, script.read_bytes()
    )


def test_a_full_store_is_told(script: Path) -> None:
    """Nothing is pinned, and pinning again works."""
    home = MemoryStore()
    with pytest.raises(UnavailableError, match="the disk is full"):
        pin(FaultyStore(home, FaultPlan(every_write=Fault.NO_SPACE)), "orders", script.name, script.read_bytes())
    assert pin(home, "orders", script.name, script.read_bytes())


def test_a_pinned_file_that_is_missing_or_altered_is_refused(script: Path, tmp_path: Path) -> None:
    """Other bytes are never run instead (Law 15)."""
    home = MemoryStore()
    artifact = pin(home, "orders", script.name, script.read_bytes())
    key = layout.artifact_key("orders", artifact.sha256, artifact.name)
    home.put(key, b"print('evil')\n")
    with pytest.raises(DataError, match="missing or altered"):
        materialise(home, "orders", artifact, tmp_path / "work")
    home.delete(key)
    with pytest.raises(DataError, match="missing or altered"):
        materialise(home, "orders", artifact, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_local_copy_that_was_altered_is_made_again(script: Path, tmp_path: Path) -> None:
    """What runs is checked at every start (Law 15); nothing else is left in the folder."""
    home = MemoryStore()
    artifact = pin(home, "orders", script.name, script.read_bytes())
    folder = tmp_path / "work" / "deep"
    materialise(home, "orders", artifact, folder).write_bytes(b"half")
    again = materialise(home, "orders", artifact, folder)
    assert again == folder / "job.py"
    assert again.read_bytes() == script.read_bytes()
    assert [path.name for path in folder.iterdir()] == ["job.py"]


def test_a_folder_that_cannot_be_made_is_told(script: Path) -> None:
    """In the package's own words."""
    home = MemoryStore()
    artifact = pin(home, "orders", script.name, script.read_bytes())
    with pytest.raises(InvalidRequestError):
        materialise(home, "orders", artifact, script / "below a file")


def test_two_launches_that_place_the_same_file_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two controllers launch the same attempt at once: each finds the pinned bytes, whole, and neither fails over a
    file that the other moved away (Laws 2 and 15)."""
    home, script, folder = MemoryStore(), tmp_path / "job.py", tmp_path / "launch"
    script.write_bytes(b"x = 1\n" * 300_000)
    artifact = pin(home, "orders", script.name, script.read_bytes())
    for _ in range(20):
        together = threading.Barrier(4)

        def place(together: threading.Barrier = together) -> bytes:
            together.wait(30)
            return materialise(home, "orders", artifact, folder).read_bytes()

        with ThreadPoolExecutor(4) as pool:
            placed = [pool.submit(place) for _ in range(4)]
            assert {future.result(30) for future in placed} == {script.read_bytes()}
        assert [path.name for path in folder.iterdir()] == ["job.py"]
        (folder / "job.py").unlink()
