"""The cases of a simulator sweep that run.

The tier sets ``STREAMSTATE_SIM`` (``support/tiers.py``): ``full`` runs every case, ``sample`` one of each sweep.
Where it is not set each sixth case runs, or each sixth of each n-th, as the sweep sets. ``STREAMSTATE_SIM_SEED``
chooses which.
"""

from __future__ import annotations

import os
import random

SAMPLE = 1
"""Cases of one sweep in a sample."""
PART = 6
"""Where the tier sets nothing, one of so many cases runs."""


def chosen_cases(cases: list[object], every: int) -> list[object]:
    """The cases of a sweep that run; at least one, if there is one."""
    setting = os.environ.get("STREAMSTATE_SIM")
    if setting == "full":
        return cases
    seed = int(os.environ.get("STREAMSTATE_SIM_SEED", "0"))
    if setting == "sample":
        return random.Random(seed).sample(cases, min(SAMPLE, len(cases)))
    step = PART * every
    return cases[seed % step :: step] or cases[:1]
