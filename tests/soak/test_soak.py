"""Random upgrades of a stream under load, with controllers and drivers killed at random: each row comes out once.

``STREAMSTATE_SOAK`` sets how many, ``STREAMSTATE_SOAK_MINUTES`` how long at most, ``STREAMSTATE_SOAK_SEED`` which;
the seed is printed. ``--launcher`` sets where the drivers run.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from pathlib import Path

import pytest

from support.soaked import Drivers, Soak

pytestmark = [pytest.mark.spark, pytest.mark.timeout(0)]

UPGRADES = int(os.environ.get("STREAMSTATE_SOAK", "30"))
MINUTES = float(os.environ.get("STREAMSTATE_SOAK_MINUTES", "inf"))
SEED = os.environ.get("STREAMSTATE_SOAK_SEED") or secrets.token_hex(4)


def test_every_row_comes_out_once_through_many_upgrades(tmp_path: Path, drivers: Drivers) -> None:
    """Upgraded or rolled back, never between; the lineage is complete at the end of each; no row is lost or
    doubled; in the end no driver is left (Laws 1, 2, 5, 9, 11, 14)."""
    print(f"\nseed {SEED}, {UPGRADES} upgrades in {MINUTES} minutes at most")
    soak = Soak(tmp_path / "soak", random.Random(SEED), drivers)
    soak.begin()
    until = time.monotonic() + 60 * MINUTES  # noqa: TID251 - how long this runs, not how fast
    for number in range(1, UPGRADES + 1):
        if time.monotonic() > until:  # noqa: TID251
            break
        soak.upgrade(number)
    soak.end()
    rows, expected = soak.rows(), soak.expected()
    print(f"{dict(soak.outcomes)}, {expected[0]:,} rows")
    assert {value: times for value, times in rows.items() if times != 1} == {}
    assert len(rows) == expected[0]
    assert soak.counted() == expected
    audit = soak.shell("audit")
    assert audit["ok"], audit
    assert soak.outcomes["upgraded"] > 0
