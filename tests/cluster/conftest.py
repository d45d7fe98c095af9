"""A standalone cluster for a test, a home alongside it, and nothing left of either afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import Cluster, cluster
from support.shell import Desk, desk_with


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """A master and two workers of one core each, for tests that kill nothing of it."""
    with cluster() as made:
        yield made


@pytest.fixture
def spark_cluster() -> Iterator[Cluster]:
    """A master and two workers of one core each, for this test alone: it may kill them."""
    with cluster() as made:
        yield made


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, the machine's own ``spark-submit``, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made
