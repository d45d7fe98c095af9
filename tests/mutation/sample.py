"""A seeded sample of the mutants that mutmut has made: ``mutmut run $(python tests/mutation/sample.py 40 checkpoint)``.

The first argument is how many mutants of each file, the others are parts of the files' paths (all files if there
are none). ``STREAMSTATE_MUTATION_SEED`` is the seed, 0 where it is not set. Mutants are made by any run of mutmut,
below ``mutants/``.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

MUTANTS = Path(__file__).resolve().parents[2] / "mutants"


def sample(count: int, parts: Sequence[str], seed: str) -> list[str]:
    """Names of mutants, file by file; the same ones for the same code, arguments and seed."""
    chosen: list[str] = []
    for path in sorted((MUTANTS / "airflow_streamstate").rglob("*.py.meta")):
        if parts and not any(part in path.as_posix() for part in parts):
            continue
        names = sorted(json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"])
        chosen += random.Random(f"{seed} {path.name}").sample(names, min(count, len(names)))
    return chosen


if __name__ == "__main__":
    print("\n".join(sample(int(sys.argv[1]), sys.argv[2:], os.environ.get("STREAMSTATE_MUTATION_SEED", "0"))))
