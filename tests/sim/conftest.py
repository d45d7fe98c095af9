"""What all simulations share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import pytest

from support.sim_cases import chosen_cases
from support.sim_workers import in_processes


class Sweep(Protocol):
    """Lives once for each case, and reports all that broke a law."""

    def __call__(self, cases: Iterable[object], live: Callable[[int, object], object], *, every: int = 1) -> None:
        """
        Args:
            cases: one for each life.
            live: lives it; is given the number of the life, too.
            every: where ``STREAMSTATE_SIM`` is not set, one of six of each n-th case runs.
        """


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the scripts are, for all lives, also of several at once: their bytes are always the same."""
    return tmp_path_factory.mktemp("lives")


@pytest.fixture(scope="session")
def sweep() -> Sweep:
    """As ``Sweep``."""

    def run(cases: Iterable[object], live: Callable[[int, object], object], *, every: int = 1) -> None:
        chosen = chosen_cases(list(cases), every)
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
