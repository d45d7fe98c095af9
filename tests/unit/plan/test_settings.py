"""``airflow_streamstate.plan.model``: what of a session is kept."""

from __future__ import annotations

from airflow_streamstate.checkpoint.guards import PROVIDER
from airflow_streamstate.plan.model import CHANGELOG, PARTITIONS, SETTINGS, state_layout


def test_no_setting_could_hold_a_secret() -> None:
    """Only those of this list are ever asked for."""
    assert all(name.startswith("spark.sql.") for name in SETTINGS)
    assert len(set(SETTINGS)) == len(SETTINGS)


def test_how_state_is_kept_follows_from_the_settings() -> None:
    """Spark's own defaults where nothing is known."""
    layout = state_layout({PARTITIONS: "8", PROVIDER: "org.apache.RocksDBStateStoreProvider", CHANGELOG: "TRUE"})
    assert (layout.partitions, layout.provider, layout.changelog) == (8, "org.apache.RocksDBStateStoreProvider", True)
    assert (state_layout({}).partitions, state_layout({}).checkpoint_format) == (200, 1)
