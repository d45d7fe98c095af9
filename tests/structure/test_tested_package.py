"""What is tested is what is shipped."""

from __future__ import annotations

import configparser
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_streamstate
from support.tested_package import misplaced

ROOT = Path(__file__).resolve().parents[2]


def test_under_tox_the_wheel_is_tested() -> None:
    """The package comes from the environment's own folder; ``tests/conftest.py`` asks the same in every environment."""
    assert misplaced(os.environ, airflow_streamstate.__file__) is None


@pytest.mark.parametrize(
    ("environ", "place", "is_right"),
    [
        ({"TOX_ENV_NAME": "unit"}, ".tox/unit/lib/python3.11/site-packages/airflow_streamstate", True),
        ({"TOX_ENV_NAME": "unit"}, "airflow_streamstate", False),
        ({}, "airflow_streamstate", True),
    ],
)
def test_a_checkout_under_tox_is_told(tmp_path: Path, environ: dict[str, str], place: str, is_right: bool) -> None:
    """Also where the environment is within the checkout, as tox makes it; without tox the checkout is tested."""
    said = misplaced(environ, str(tmp_path / place / "__init__.py"), str(tmp_path / ".tox/unit"))
    assert (said is None) is is_right
    assert said is None or str(tmp_path / place) in said


def test_demo_and_benchmarks_run_beside_the_wheel() -> None:
    """Their folder is put last on the path, so that the package is the wheel's: ``python -m`` would put it first."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    for name in ("demo", "airflow-up", "bench"):
        assert tox[f"testenv:{name}"]["commands"].startswith("{[beside]python}"), name
    assert tox["beside"]["python"].startswith("python -P ")
    assert "sys.path.append" in tox["beside"]["python"]


def test_the_benchmarks_start_as_tox_starts_them() -> None:
    """Their first import fails otherwise, and nothing else notices."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    command = tox["testenv:bench"]["commands"].replace("{[beside]python}", tox["beside"]["python"])
    _python, *words = shlex.split(command.replace("{posargs}", "--help"))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(path).name != "tests"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    started = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert started.returncode == 0, started.stderr
    assert "--only" in started.stdout


def test_an_interrupt_leaves_every_environment_the_time_to_end_what_it_started() -> None:
    """By its defaults tox kills within a second what would end drivers and servers, and signals it a second time."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    for name, least_seconds in (("suicide_timeout", 30), ("interrupt_timeout", 60), ("terminate_timeout", 10)):
        assert tox["testenv"].getfloat(name) >= least_seconds
        assert [section for section in tox.sections() if name in tox[section]] == ["testenv"]
