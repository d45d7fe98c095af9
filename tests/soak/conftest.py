"""Where the drivers of a soak run, by ``--launcher``; they start fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from support.quick_jvm import make_archive
from support.shell import Desk
from support.soaked import Drivers, LocalDrivers
from support.yarn_cluster import YarnCluster
from support.yarn_soak import YarnDrivers


@contextmanager
def local_drivers(base: Path) -> Iterator[Drivers]:
    """On this machine."""
    try:
        yield LocalDrivers()
    finally:
        Desk(base).end_drivers()


@contextmanager
def yarn_drivers(base: Path) -> Iterator[Drivers]:
    """On a YARN whose logs stay in the folder of the test."""
    cluster = YarnCluster(base / "yarn")
    try:
        cluster.start()
        yield YarnDrivers(cluster)
    finally:
        cluster.stop()


LAUNCHERS: dict[str, Callable[[Path], AbstractContextManager[Drivers]]] = {
    "local": local_drivers,
    "yarn": yarn_drivers,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--launcher", choices=LAUNCHERS, default="local", help="where the drivers of the soak run")


@pytest.fixture(scope="session")
def quick_jvm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A class archive for every JVM of this run."""
    make_archive(tmp_path_factory.mktemp("classes"))


@pytest.fixture
def drivers(request: pytest.FixtureRequest, tmp_path: Path, quick_jvm: None) -> Iterator[Drivers]:
    """Drivers of a soak in the folder ``soak``, where ``--launcher`` puts them; none of them is left."""
    with LAUNCHERS[request.config.getoption("--launcher", "local")](tmp_path / "soak") as made:
        yield made
