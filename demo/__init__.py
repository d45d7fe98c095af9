"""The whole life of a stream on real flights: deployed, snapshotted, upgraded twice, and every row compared.

``python -m demo`` runs it: ``life`` has the sequence, ``feed`` the input, ``compare`` the comparison of rows,
``timeline`` and ``page`` the report. Airflow runs on loopback.
"""

import sys
from pathlib import Path

# Servers, Airflow and the folder of a run come from what the tests have for them.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
