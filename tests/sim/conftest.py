"""What all simulations share: how many cases of a sweep run.

``STREAMSTATE_SIM`` says it: ``full`` runs every case, ``sample`` a few of each sweep, chosen by
``STREAMSTATE_SIM_SEED``; without it each second case runs, or each second of each n-th, as the sweep says.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import pytest

from support.sim_workers import in_processes

SAMPLE = 3
"""Cases of one sweep in a sample."""


class Sweep(Protocol):
    """Lives once for each case, and tells all that broke a law."""

    def __call__(self, cases: Iterable[object], live: Callable[[int, object], object], *, every: int = 1) -> None:
        """
        Args:
            cases: one for each life.
            live: lives it; is given the number of the life, too.
            every: in ``full`` each second of each n-th case; in ``named`` all.
        """


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the scripts lie, for all lives, also of several at once: their bytes are always the same."""
    return tmp_path_factory.mktemp("lives")


def _chosen(cases: list[object], every: int) -> list[object]:
    setting = os.environ.get("STREAMSTATE_SIM")
    if setting == "full":
        return cases
    if setting == "sample":
        seed = int(os.environ.get("STREAMSTATE_SIM_SEED", "0"))
        return random.Random(seed).sample(cases, min(SAMPLE, len(cases)))
    return cases[:: 2 * every]


@pytest.fixture(scope="session")
def sweep() -> Sweep:
    """As ``Sweep``."""

    def run(cases: Iterable[object], live: Callable[[int, object], object], *, every: int = 1) -> None:
        chosen = _chosen(list(cases), every)
        assert chosen, "nothing was struck"

        def act(at: int) -> str | None:
            try:
                live(at, chosen[at])
            except Exception as error:
                return f"{chosen[at]}: {type(error).__name__}: {error}"
            return None

        broken = in_processes(len(chosen), act)
        assert not broken, f"{len(broken)} of {len(chosen)} lives broke a law:\n" + "\n".join(broken[:10])

    return run
