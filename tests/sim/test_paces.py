"""A new version is judged by how it goes over its batches compared with the old one, not by a single number."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from support.sim_paces import BUSY, PacedUpgrade, Version
from support.sim_world import SETTINGS
from support.simulated_connector import install_connector


@pytest.fixture(autouse=True)
def sources_that_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector of the simulated sources is installed."""
    install_connector(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


def test_a_sawtooth_whose_first_sample_was_low_makes_no_good_version_fail(tmp_path: Path) -> None:
    """The first sign of life comes right behind a commit, where the least is left; on a busy machine each of the few
    later ones comes within a batch, or while the query sleeps. The version reads all that comes, as the old one did."""
    steady = Version(trigger_seconds=12.5)
    upgrade = PacedUpgrade(tmp_path, old=steady, new=steady, settings=BUSY)
    view = upgrade.run()
    assert (view.outcome, view.state.text) == ("upgraded", "")
    upgrade.assert_each_row_came_once()


def test_a_burst_at_the_handover_is_no_fault_of_the_new_version(tmp_path: Path) -> None:
    """Right after its first commit more comes than it can read at once, so that what is left has grown when its time is
    over: it reads faster than the old one ever had to."""
    old = Version(rows_per_batch=30)
    upgrade = PacedUpgrade(
        tmp_path,
        old=old,
        new=old,
        rows_per_second=lambda seconds: 400.0 if 0.0 < seconds < 20.0 else 10.0,
        terms=UpgradeTerms(warm=False, healthy_deadline_seconds=60.0),
    )
    view = upgrade.run()
    assert (view.outcome, view.state.warnings) == ("upgraded", ())
    upgrade.assert_each_row_came_once()


@pytest.mark.parametrize("settings", [SETTINGS, BUSY], ids=["calm", "busy"])
def test_a_slow_source_is_no_fault_of_the_new_version(tmp_path: Path, settings: AgentSettings) -> None:
    """A row in fifty seconds: it finds no input in between, and is not asked for batches that there is no input for."""
    steady = Version(rows_per_batch=30)
    upgrade = PacedUpgrade(tmp_path, old=steady, new=steady, rows_per_second=lambda _: 0.02, settings=settings)
    view = upgrade.run()
    assert (view.outcome, view.state.warnings) == ("upgraded", ())
    upgrade.assert_each_row_came_once()


def test_a_slow_trigger_is_no_fault_of_the_new_version(tmp_path: Path) -> None:
    """Its script asks for a batch every four minutes, as before: few are committed in its time, which is reported."""
    steady = Version(trigger_seconds=240.0)
    upgrade = PacedUpgrade(tmp_path, old=steady, new=steady, settings=BUSY, warms_seconds=800.0)
    view = upgrade.run()
    assert view.outcome == "upgraded"
    (warning,) = view.state.warnings
    assert warning.startswith("query rows has committed 2 of 3 batches: one in 24")
    assert "and the version before one in 24" in warning
    upgrade.assert_each_row_came_once()


@pytest.mark.parametrize(
    ("settings", "factor", "outcome"),
    [(SETTINGS, None, "upgraded"), (BUSY, None, "upgraded"), (BUSY, 1.5, "given_up"), (BUSY, 4.0, "upgraded")],
)
def test_a_version_that_is_only_slower_is_kept_unless_it_was_asked_otherwise(
    tmp_path: Path, settings: AgentSettings, factor: float | None, outcome: str
) -> None:
    """It reads less than half of what comes, and of what the old one read: both rates are reported, on a busy machine
    as well, and it is rolled back by a factor alone that it comes to."""
    upgrade = PacedUpgrade(
        tmp_path,
        old=Version(rows_per_batch=30),
        new=Version(rows_per_batch=10, batch_seconds=1.8),
        settings=settings,
        terms=UpgradeTerms(warm=False, roll_back_if_slower=factor),
    )
    view = upgrade.run()
    assert view.outcome == outcome
    said = view.state.text if outcome == "given_up" else " ".join(view.state.warnings)
    assert re.search(r"falls behind: it reads 4[.0-9]* rows/s while (9.9|10)[.0-9]* rows/s arrive", said), said
    assert re.search(r"the version before read (9.9|10)[.0-9]* rows/s", said), said
    upgrade.assert_each_row_came_once()


@pytest.mark.parametrize(("settings", "hangs_after"), [(BUSY, 0), (SETTINGS, 1), (BUSY, 2)])
def test_a_version_that_stands_still_is_rolled_back(tmp_path: Path, settings: AgentSettings, hangs_after: int) -> None:
    """Input waits, and no batch is committed, also not after a first one: the old version continues."""
    upgrade = PacedUpgrade(
        tmp_path,
        old=Version(rows_per_batch=30),
        new=Version(rows_per_batch=30, hangs_after=hangs_after),
        settings=settings,
    )
    view = upgrade.run()
    assert view.outcome == "given_up"
    upgrade.assert_each_row_came_once()
