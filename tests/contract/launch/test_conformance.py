"""The conformance suite of launchers, over the local one; on a real cluster ``tests/cluster`` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.errors import ConflictError
from airflow_streamstate.launch.conformance import PROMISES, Promise, check_launcher, one_key_is_one_driver
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest, LaunchStatus
from airflow_streamstate.launch.local import LocalLauncher
from support.launcher_stage import LocalStage
from support.launches import nothing_left_behind

KEPT = [promise for promise in PROMISES if promise.__name__ not in LocalLauncher.limits]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[LocalStage]:
    """Drivers without Spark, and nothing left of them afterwards."""
    with nothing_left_behind(tmp_path):
        yield LocalStage(tmp_path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("promise", KEPT, ids=lambda promise: promise.__name__)
def test_the_local_launcher_keeps_each_promise(stage: LocalStage, promise: Promise) -> None:
    """The local launcher keeps every promise of the suite (Laws 1 and 2)."""
    promise(stage)


class Forgetful(LocalLauncher):
    """A launcher that takes every launch for a new one."""

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        folder = f"{request.folder}-{self._clock.new_uuid()}"
        raw = {**request.to_json(), "folder": folder, "log_path": f"{folder}/driver.log"}
        return super().launch(LaunchRequest.from_json(raw))


class Believing(LocalLauncher):
    """A launcher that takes what was killed for finished, as a standalone master does."""

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        status = super().kill(handle, grace_seconds)
        return LaunchStatus("exited", 0, "FINISHED", status.observed_at)


@pytest.mark.parametrize(
    ("kind", "words"), [(Forgetful, "one key has several handles"), (Believing, "counts as ended|ended by itself")]
)
def test_the_suite_finds_a_launcher_that_breaks_a_promise(
    tmp_path: Path, kind: type[LocalLauncher], words: str
) -> None:
    """A second driver for one key, and a killed one that counts as finished, are both named."""

    class Stage(LocalStage):
        def launcher(self) -> LocalLauncher:
            return kind(self.clock, environ=super().launcher()._environ)

    with nothing_left_behind(tmp_path), pytest.raises(AssertionError, match=words):
        one_key_is_one_driver(Stage(tmp_path))


def test_the_whole_suite_is_one_call(tmp_path: Path) -> None:
    """Without a test framework: the first broken promise is raised."""

    class Refusing(LocalStage):
        def launcher(self) -> LocalLauncher:
            raise ConflictError("nothing is launched here")

    with pytest.raises(ConflictError):
        check_launcher(lambda: Refusing(tmp_path))
