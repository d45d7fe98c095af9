"""What is left out of the tests that everybody runs, since another test is enough to see the same break.

``STREAMSTATE_FULL=1`` leaves out nothing.
"""

from __future__ import annotations

import os

import pytest

FULL_TIER = pytest.mark.skipif(not os.environ.get("STREAMSTATE_FULL"), reason="STREAMSTATE_FULL=1 runs it")
