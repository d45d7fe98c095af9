"""The Airflow home of one test session, made before the first import of Airflow.

Import this module before anything of Airflow; the conftest files of the folders that need it do.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from support.airflow_site import airflow_environment, migrate

REPOSITORY = Path(__file__).resolve().parents[2]
DAGS_FOLDER = REPOSITORY / "dags"


def _own_home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="airflow-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ.update(airflow_environment(home, DAGS_FOLDER))
    return home


HOME = _own_home()


@functools.cache
def database() -> None:
    """The database of that home, once per session."""
    migrate({})
