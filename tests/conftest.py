"""What holds for every test, and the servers that several folders use."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import airflow_streamstate
from support import airflow_home, quick_imports, tiers
from support.tested_package import misplaced

if TYPE_CHECKING:
    from support.s3_proxy import StrikingProxy
    from support.yarn_cluster import YarnCluster

TESTS = Path(__file__).parent
assert airflow_home.HOME.is_dir()  # made before anything imports Airflow, whichever tests run

# No test times anything: a busy machine is not a failure.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(tiers.QUICK, settings.get_profile("house"), max_examples=10)
settings.load_profile("house")


FAST_TEMPORARY = Path("/dev/shm")
ROOM_BYTES = 6 << 30


def _use_memory_for_temporary_files() -> None:
    """Put pytest's temporary folders into memory if there is room: on some disks each removal takes milliseconds.

    ``PYTEST_DEBUG_TEMPROOT`` is pytest's own variable; whoever has set it, or gives ``--basetemp``, has decided.
    """
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not os.access(FAST_TEMPORARY, os.W_OK):
        return
    free = os.statvfs(FAST_TEMPORARY)
    if free.f_bavail * free.f_frsize >= ROOM_BYTES:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(FAST_TEMPORARY)


_use_memory_for_temporary_files()


def pytest_addoption(parser: pytest.Parser) -> None:
    choices = (tiers.QUICK, *tiers.TIERS)
    parser.addoption("--tier", choices=choices, help="run one tier alone (docs/project/contributing.md)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tests read their tier's settings while they are collected.

    Where several workers with real servers and JVMs share a machine, two tests may run once more. Each is reported
    with its traceback: a finding, not noise. In ``quick`` none is repeated.
    """
    tier, has_workers = config.getoption("--tier"), _is_worker() or config.getoption("dist", "no") != "no"
    if tier == tiers.QUICK:
        quick_imports.refuse()
        settings.load_profile(tiers.QUICK)
    elif tier and has_workers and config.option.reruns is None:
        config.option.reruns, config.option.max_suite_reruns, config.option.rerun_show_tracebacks = 1, 2, True
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores it for what it runs in the background, and so would every program that a test interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in tiers.SETTINGS.get(tier, {}).items():
        os.environ.setdefault(name, value)
    # What commands of tests allow is kept there, and not in the list of the person who runs them.
    os.environ.setdefault(
        "STREAMSTATE_ALLOWED", f"{tempfile.gettempdir()}/streamstate-tests-{os.getuid()}/allowed.json"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """With ``--dist loadfile`` a worker takes a file, or a folder whose tests share a slow server."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return tiers.scope_of(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Under tox each tier leaves the durations of its tests alongside the environment."""
    tier, place = config.getoption("--tier"), os.environ.get("TOX_ENV_DIR")
    if tier and place and not config.option.xmlpath and not _is_worker():
        config.option.xmlpath = str(Path(place).parent / f"{tier}.xml")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The tier ``quick`` imports nothing that it does not run, such as Airflow."""
    if config.getoption("--tier") != tiers.QUICK or not collection_path.is_relative_to(TESTS):
        return None
    folders = collection_path.relative_to(TESTS).parts
    return True if folders and not tiers.is_quick_place(folders) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of the tier, and what takes long first, so that no worker ends long after the other."""
    if (tier := config.getoption("--tier")) is not None:
        _keep(config, items, lambda item: tier in tiers.tiers_of_item(item, TESTS))
    items.sort(key=lambda item: tiers.rank_of_item(item, TESTS))


def _keep(config: pytest.Config, items: list[pytest.Item], is_kept: Callable[[pytest.Item], bool]) -> None:
    left = [item for item in items if not is_kept(item)]
    items[:] = [item for item in items if is_kept(item)]
    config.hook.pytest_deselected(items=left)


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_sessionstart() -> None:
    """In every environment of tox: no test runs against the checkout, unseen."""
    if (said := misplaced(os.environ, airflow_streamstate.__file__)) is not None:
        raise pytest.UsageError(said)


def _beside_environment(suffix: str) -> Path | None:
    """A file alongside tox's environment, which CI looks at in the end; none without tox. Each worker has its own."""
    place = os.environ.get("TOX_ENV_DIR")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return Path(place).with_suffix(f".{worker}{suffix}") if place else None


def pytest_runtest_logstart(nodeid: str) -> None:
    """A run that dies leaves the name of the test it died in."""
    if (running := _beside_environment(".running")) is not None:
        running.write_text(f"== died in: {nodeid}\n", encoding="utf-8")


def pytest_sessionfinish() -> None:
    if (running := _beside_environment(".running")) is not None:
        running.unlink(missing_ok=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Under tox each red try is kept alongside the environments, too: CI prints them last, where they are seen."""
    if not _is_worker() and report.outcome in {"failed", "rerun"} and (red := _beside_environment(".red")) is not None:
        with red.open("a", encoding="utf-8") as file:
            file.write(f"== {report.outcome}: {report.nodeid} ({report.when})\n{report.longreprtext[-3000:]}\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report which S3 servers a run had: on a machine without Go the real one is moto's."""
    server = sys.modules.get("support.s3_server")
    if server is not None and server.used:
        terminalreporter.write_line(f"S3 servers of this run: {', '.join(sorted(server.used))}")


# The imports below cost seconds that most tests need not pay.


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """Endpoint of moto's server."""
    from support.s3_server import s3_server

    with s3_server() as endpoint_url:
        yield endpoint_url


@pytest.fixture(scope="session")
def real_url() -> Iterator[str]:
    """Endpoint of a real S3 server; moto's on a machine without Go."""
    from support.s3_server import real_s3_server

    with real_s3_server() as endpoint_url:
        yield endpoint_url


@pytest.fixture(scope="session")
def gcs_url() -> Iterator[str]:
    """Address of a server of Google Cloud Storage; skips on a machine without Go."""
    from support.gcs_server import gcs_server

    with gcs_server() as endpoint_url:
        if endpoint_url is None:
            pytest.skip("fake-gcs-server is built with Go, which is not here")
        yield endpoint_url


@pytest.fixture(scope="session")
def azure_url() -> Iterator[str]:
    """Address of a server of Azure Blob; skips on a machine without npm."""
    from support.azurite import azurite_server

    with azurite_server() as endpoint_url:
        if endpoint_url is None:
            pytest.skip("Azurite is installed with npm, which is not here")
        yield endpoint_url


@pytest.fixture(scope="session")
def yarn() -> Iterator[YarnCluster]:
    """A ResourceManager and a NodeManager."""
    from support.yarn_cluster import yarn_cluster

    with yarn_cluster() as cluster:
        yield cluster


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.moto), pytest.param("real", marks=pytest.mark.s3)])
def s3_endpoint_url(request: pytest.FixtureRequest) -> str:
    """Each S3 server in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def s3_proxy(s3_endpoint_url: str) -> Iterator[StrikingProxy]:
    """A proxy before the server."""
    from support.s3_server import striking_proxy

    with striking_proxy(s3_endpoint_url) as proxy:
        yield proxy
