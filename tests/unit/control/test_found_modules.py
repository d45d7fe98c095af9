"""Modules that drivers recorded: how many are read, and which files next to a script a controller reads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_streamstate.control import artifacts
from airflow_streamstate.control.artifacts import MOST_MODULES
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import MalformedMessageError, SignatureError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.records import Artifact, DeploymentSpec, FoundModule
from airflow_streamstate.protocol.signing import SigningKeys
from airflow_streamstate.store.memory import MemoryStore
from support.examples import example
from support.fake_clock import FakeClock
from support.recorded_specs import with_version

BODY = b"RATE = 2\n"
KEYS = SigningKeys.parse("s" * 64, "x")


def recorded(store: MemoryStore, spec: DeploymentSpec, name: str = "plugin.py", **more: object) -> None:
    """A module as a driver records it, which cannot sign."""
    module = Artifact(name, hashlib.sha256(BODY).hexdigest())
    found = FoundModule(spec.stream_id, spec.deployment_id, module, FakeClock().now(), "w")
    body = to_bytes(found).rstrip()[:-1] + b"".join(f', "{key}": "{value}"'.encode() for key, value in more.items())
    store.put(layout.found_module_key(spec.stream_id, spec.deployment_id, name), body + b"}")


def stream(store: MemoryStore, folder: Path, keys: SigningKeys | None = None) -> tuple[StreamControl, DeploymentSpec]:
    """A stream, and a version whose script is in this folder."""
    recorded = example(DeploymentSpec)
    assert isinstance(recorded, DeploymentSpec)
    spec = with_version(recorded, script_path=str(folder / "job.py"), modules=())
    return StreamControl(store, spec.stream_id, FakeClock(), keys=keys), spec


def test_more_modules_than_a_script_has_are_not_read(tmp_path: Path) -> None:
    """All that there may be are."""
    store = MemoryStore()
    control, spec = stream(store, tmp_path)
    for number in range(MOST_MODULES):
        recorded(store, spec, f"m{number}.py")
    assert len(control.with_found_modules(spec).version.modules) == MOST_MODULES
    recorded(store, spec, "one_more.py")
    with pytest.raises(MalformedMessageError, match="more records of modules than a script may have"):
        control.with_found_modules(spec)


def test_a_record_of_a_module_is_short(tmp_path: Path) -> None:
    """A longer one is not read."""
    store = MemoryStore()
    control, spec = stream(store, tmp_path)
    recorded(store, spec, more="x" * (16 << 10))
    with pytest.raises(MalformedMessageError, match="large"):
        control.with_found_modules(spec)


def endless(path: Path) -> None:
    """A pipe that nobody writes to."""
    os.mkfifo(path)


def huge(path: Path) -> None:
    """More than any module has, of which the disk holds nothing."""
    with path.open("wb") as file:
        file.truncate(artifacts.MOST_MODULE_BYTES + 1)


@pytest.mark.parametrize("make", [endless, huge, Path.mkdir])
def test_what_is_no_module_beside_the_script_is_not_read(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """The record stays unsigned, and is not believed; the module itself would have been."""
    store = MemoryStore()
    control, spec = stream(store, tmp_path, KEYS)
    recorded(store, spec)
    make(tmp_path / "plugin.py")
    with pytest.raises(SignatureError):
        control.with_found_modules(spec)
    (tmp_path / "plugin.py").rename(tmp_path / "other")
    (tmp_path / "plugin.py").write_bytes(BODY)
    assert [one.name for one in control.with_found_modules(spec).version.modules] == ["plugin.py"]
