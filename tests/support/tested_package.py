"""The copy of the package under test: under tox the built wheel."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

UNDER_TOX = "TOX_ENV_NAME"

PYTHON = [sys.executable, *(["-P"] if UNDER_TOX in os.environ else [])]
"""This interpreter, for ``-m``: without ``-P`` the folder that it is started in comes first on its path."""


def misplaced(environ: Mapping[str, str], package_file: str, prefix: str = sys.prefix) -> str | None:
    """What is wrong with where the package is; None where nothing is.

    Args:
        environ: of a process of tests; tox sets ``TOX_ENV_NAME`` in it.
        package_file: ``__file__`` of the package.
    """
    place = Path(package_file).resolve().parent
    if UNDER_TOX not in environ or place.is_relative_to(Path(prefix).resolve()):
        return None
    return f"tox tests the wheel, but the package that was imported is in {place}, outside of {prefix}"
