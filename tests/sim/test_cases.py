"""Which cases of a sweep run."""

from __future__ import annotations

import pytest

from support.sim_cases import PART, chosen_cases


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_each_case_is_run_by_one_seed(monkeypatch: pytest.MonkeyPatch, every: int, count: int) -> None:
    """Where the tier sets nothing: one of six of each n-th case, and never none."""
    monkeypatch.delenv("STREAMSTATE_SIM", raising=False)
    cases: list[object] = list(range(count))
    of_seeds = []
    for seed in range(PART * every):
        monkeypatch.setenv("STREAMSTATE_SIM_SEED", str(seed))
        of_seeds.append(chosen_cases(cases, every))
    assert {case for of_seed in of_seeds for case in of_seed} == set(cases)
    assert all(0 < len(of_seed) <= 1 + count // (PART * every) for of_seed in of_seeds)
    monkeypatch.setenv("STREAMSTATE_SIM", "full")
    assert chosen_cases(cases, every) == cases
