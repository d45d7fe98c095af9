"""The page over a home on disk, with Airflow in its own home."""

from __future__ import annotations

import pytest

from support import airflow_home
from support.airflow_fixtures import named
from support.airflow_streams import NamedHome
from support.page_site import PageSite, page_site

__all__ = ["named"]


@pytest.fixture
def site(named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> PageSite:
    """The page; its home is empty."""
    airflow_home.database()
    return page_site(monkeypatch)
