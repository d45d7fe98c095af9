"""The stores of the contract tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_streamstate.errors import OutcomeUnknownError, StreamStateError, VersionConflictError
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.s3 import s3_store
from airflow_streamstate.store.server import ServerStore
from support.fake_clock import FakeClock
from support.faulty_store import FaultyStore
from support.s3_server import BUCKET, Weather, options_for, striking_proxy

FAULTY_SHARE = 0.1
PART_BYTES = 5 * 1024 * 1024
"""S3 takes no smaller parts."""
_prefixes = itertools.count()

STORES = ["memory", "local", "local-synced", "faultless"]
S3_STORES = [
    "moto",
    "moto-faults",
    pytest.param("real", marks=pytest.mark.s3),
    pytest.param("real-faults", marks=pytest.mark.s3),
]
OBJECT_STORES = [
    pytest.param(kind, marks=pytest.mark.objects) for kind in ("gcs", "gcs-faults", "azure", "azure-faults")
]
"""With faults: a tenth of all requests goes wrong, in every way that there is, and what is tried again arrives."""


@pytest.fixture
def s3_prefix() -> str:
    return f"home/{next(_prefixes)}"


@pytest.fixture
def open_s3(request: pytest.FixtureRequest, s3_prefix: str) -> Callable[[str], ServerStore]:
    """Opens an empty store on the server of this name, with faults where it ends in ``-faults``."""

    def open_store(kind: str) -> ServerStore:
        server, _, faults = kind.partition("-")
        endpoint_url = str(request.getfixturevalue(f"{server}_url"))
        if not faults:
            return s3_store(BUCKET, s3_prefix, options_for(endpoint_url), upload_part_bytes=PART_BYTES)
        running = striking_proxy(endpoint_url)
        proxy = running.__enter__()
        request.addfinalizer(lambda: running.__exit__(None, None, None))
        proxy.weather = Weather(FAULTY_SHARE, seed=int(s3_prefix.rpartition("/")[2]), mercy=True)
        options = options_for(proxy.endpoint_url)
        return s3_store(BUCKET, s3_prefix, options, clock=FakeClock(), upload_part_bytes=PART_BYTES)

    return open_store


@pytest.fixture
def open_objects(request: pytest.FixtureRequest, s3_prefix: str) -> Callable[[str], Store]:
    """Opens an empty store on the server of GCS or Azure Blob, with faults where the name ends in ``-faults``."""

    def open_store(kind: str) -> Store:
        from support.object_stores import object_store

        server, _, faults = kind.partition("-")
        endpoint_url = request.getfixturevalue(f"{server}_url")
        if not faults:
            return object_store(server, endpoint_url, s3_prefix)
        running = striking_proxy(endpoint_url)
        proxy = running.__enter__()
        request.addfinalizer(lambda: running.__exit__(None, None, None))
        proxy.weather = Weather(FAULTY_SHARE, seed=int(s3_prefix.rpartition("/")[2]), mercy=True)
        return object_store(server, proxy.endpoint_url, s3_prefix, clock=FakeClock())

    return open_store


@pytest.fixture(params=[*STORES, *S3_STORES, *OBJECT_STORES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind; "faultless" is the faulty one without a fault."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "faultless":
        return FaultyStore(MemoryStore())
    if request.param.startswith("local"):
        return LocalStore(tmp_path / "home", fsync=request.param == "local-synced")
    if request.param.startswith(("gcs", "azure")):
        open_objects: Callable[[str], Store] = request.getfixturevalue("open_objects")
        return open_objects(request.param)
    open_s3: Callable[[str], ServerStore] = request.getfixturevalue("open_s3")
    return open_s3(request.param)


@pytest.fixture
def not_replaced(request: pytest.FixtureRequest) -> tuple[type[StreamStateError], ...]:
    """What ``store`` raises where it did not replace: with faults, also that it cannot know (Law 8)."""
    is_faulty = str(request.node.callspec.params["store"]).endswith("-faults")
    return (VersionConflictError, OutcomeUnknownError) if is_faulty else (VersionConflictError,)
