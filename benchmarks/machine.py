"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import airflow_streamstate


def machine_facts() -> dict[str, object]:
    """Cores, load before the run, and the versions that matter."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
        "kernel": platform.release(),
        "package": str(Path(airflow_streamstate.__file__).parent),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
    }
