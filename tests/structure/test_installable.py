"""The package can be installed with each Airflow that it names, from what existed on the day of that release."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
EXTRAS = re.findall(
    r"^([a-z]+) = \[$", PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[project.")[0], re.M
)
AIRFLOWS = {"3.1.8": "2026-03-12", "3.2.2": "2026-05-30", "3.3.2": "2026-09-18"}
"""The last Airflow of each minor, and the day of its release."""
BESIDE = ("apache-airflow-providers-cncf-kubernetes", "apache-airflow-providers-ssh", "apache-airflow-providers-amazon")
"""Providers whose connections the launchers take."""


# Both are built to learn what they need, which takes 450 MB of downloads; stated here, a resolution takes seconds.
METADATA = """
[[dependency-metadata]]
name = "pyspark"
requires-dist = ["py4j>=0.10.9.7,<0.11"]

[[dependency-metadata]]
name = "pyspark-client"
requires-dist = ["pandas>=2", "pyarrow>=11", "grpcio>=1.67", "grpcio-status>=1.67", "numpy>=1.21"]
"""


def resolved(tmp_path: Path, airflow: str, *options: str) -> str:
    """What uv would install; the test fails with uv's explanation if nothing fits."""
    wanted = tmp_path / "wanted.in"
    wanted.write_text("\n".join((f"apache-airflow=={airflow}", *BESIDE)))
    settings = tmp_path / "uv.toml"
    settings.write_text(METADATA)
    extras = [word for name in EXTRAS for word in ("--extra", name)]
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--quiet",
        "pyproject.toml",
        str(wanted),
        *extras,
        *options,
    ]
    command += ["--config-file", str(settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_extras_are_found() -> None:
    """The tests below try each extra of pyproject.toml."""
    assert {"spark", "gcs", "azure", "kubernetes", "ssh", "sql", "metrics", "openlineage"} <= set(EXTRAS)


@pytest.mark.parametrize(("airflow", "day"), AIRFLOWS.items())
def test_base_and_all_extras_on_the_day_of_an_airflow(tmp_path: Path, airflow: str, day: str) -> None:
    """All extras at once: what fits together fits one by one, and without any."""
    found = resolved(tmp_path, airflow, "--exclude-newer", day, "--python-version", "3.10")
    assert f"apache-airflow-core=={airflow}" in found
    assert version_of("pyspark", found) == version_of("pyspark-client", found)


@pytest.mark.parametrize("airflow", AIRFLOWS)
def test_base_and_all_extras_today(tmp_path: Path, airflow: str) -> None:
    """The newest of everything that each Airflow allows, on the newest Python that it has."""
    found = resolved(tmp_path, airflow, "--python-version", "3.14" if airflow >= "3.2" else "3.13")
    assert version_of("pyspark", found) == version_of("pyspark-client", found)


def version_of(name: str, found: str) -> str:
    line = re.search(rf"^{name}==(\S+)", found, re.M)
    assert line is not None, found
    return line.group(1)


def test_the_classifiers_are_the_pythons_that_are_allowed() -> None:
    """PyPI shows the classifiers; installers ask ``requires-python``."""
    minors = [int(minor) for minor in re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', PROJECT)]
    assert minors == list(range(10, 15))
    assert 'requires-python = ">=3.10,<3.15"' in PROJECT
