"""Airflow in a home of its own."""

import pytest

from support.airflow_fixtures import context, named
from support.airflow_streams import NamedHome
from support.snapshots import STREAM, Shelf, run_stateful

__all__ = ["context", "named"]


@pytest.fixture
def shelf(named: NamedHome) -> Shelf:
    """A stream with two stopped snapshots that have state."""
    named.stream(STREAM).deploy()
    made = Shelf(named.home.home)
    run_stateful(made.checkpoint(), 3)
    made.capture()
    run_stateful(made.checkpoint(), 5, first=4)
    made.clock.advance(60)
    made.capture(snapshot_id="d-0001-stopped-000002")
    return made
