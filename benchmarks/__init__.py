"""Speed as ratios: each benchmark sets two things against each other in one run, on one machine, in turns.

``python -m benchmarks`` runs all and prints a table; ``bench-out/results.json`` keeps every round. Benchmarks are no
tests: they assert nothing about time, and a goal that is missed is reported, not failed.
"""

import sys
from pathlib import Path

# The servers, brokers and clusters of the tests are the benchmarks' as well: ``support``, below ``tests``.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
