"""The demo, alongside the package that is tested: its folder comes last on the path, as in tox.ini."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[3])
if ROOT not in sys.path:
    sys.path.append(ROOT)
