"""A sample of the deliberate breaks is seen; and what makes them, on a repository of three files."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = Path(__file__).with_name("break_laws.py")
SAMPLE = 16


def test_a_sample_of_the_breaks_is_seen() -> None:
    """Its tests turn red, each under its break. A failure shows the seed, which is the commit of the checkout."""
    status, said = _run(ENGINE, "--sample", str(SAMPLE))
    assert status == 0, said
    assert f"{SAMPLE} of {SAMPLE} breaks were seen" in said


def test_a_sample_is_chosen_by_its_seed() -> None:
    """The same seed gives the same breaks, so that a red sample is run once more; another seed gives others."""
    engine = runpy.run_path(str(ENGINE))
    found = engine["breaks"]()
    chosen = [engine["sample"](found, 5, seed) for seed in ("a", "a", "b")]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(chosen[0]) == 5
    assert engine["sample"](found, 10_000, "a") == found


def _run(engine: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(engine), *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """The engine in a repository whose package doubles a number, and has one break of that."""
    tests = tmp_path / "tests"
    (tests / "mutation").mkdir(parents=True)
    package = tmp_path / "airflow_streamstate"
    package.mkdir()
    (package / "__init__.py").write_text("def double(number):\n    return 2 * number\n")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["tests"]\n')
    (tests / "conftest.py").write_text('def pytest_addoption(parser):\n    parser.addoption("--tier")\n')
    _test(tests, "from airflow_streamstate import double\n", "assert double(2) == 4")
    file = tests / "mutation" / "break_laws.py"
    file.write_text(ENGINE.read_text(encoding="utf-8"))
    _break(file)
    return file


def _test(tests: Path, first: str, *lines: str) -> None:
    body = "".join(f"    {line}\n" for line in lines)
    (tests / "test_one.py").write_text(f"{first}def test_one():\n{body}")


def _break(engine: Path, old: str = "2 * number", new: str = "3 * number", test: str = "test_one") -> None:
    one = {"law": 1, "words": "a half", "file": "airflow_streamstate/__init__.py", "old": old, "new": new}
    said = "".join(f"{name} = {json.dumps(value)}\n" for name, value in one.items())
    engine.with_name("laws.toml").write_text(f'[[break]]\n{said}tests = ["tests/test_one.py::{test}"]\n')


def test_a_break_is_made_in_the_copy_alone(engine: Path) -> None:
    """The package of the checkout stays as it is, and the copy's is what the test runs."""
    package = engine.parents[2] / "airflow_streamstate" / "__init__.py"
    before = package.stat().st_mtime_ns
    assert _run(engine) == (0, "[1/1] law 1, a half: seen\n1 of 1 breaks were seen by each of their tests\n")
    assert package.stat().st_mtime_ns == before


def test_a_test_that_stays_green_is_named(engine: Path) -> None:
    """Here since the break breaks nothing."""
    _break(engine, new="number * 2")
    status, said = _run(engine)
    assert status == 1, said
    assert "NOT SEEN\n    stayed green: tests/test_one.py::test_one\n0 of 1 breaks were seen" in said


def test_a_break_whose_text_is_gone_ends_the_run(engine: Path) -> None:
    """It would break nothing."""
    _break(engine, old="4 * number")
    status, said = _run(engine)
    assert status == 1, said
    assert "the text that this break exchanges is not there once: law 1, a half" in said


def test_a_test_that_does_not_run_ends_the_run(engine: Path) -> None:
    """It would be taken for one that turned red."""
    _break(engine, test="test_other")
    status, said = _run(engine)
    assert status == 1, said
    assert "pytest ended with exit status 4 over tests/test_one.py::test_other" in said


def test_a_test_that_fails_without_a_break_proves_nothing(engine: Path) -> None:
    """Its red would be taken for the break's."""
    _test(engine.parents[1], "from airflow_streamstate import double\n", "assert double(2) == 5")
    status, said = _run(engine)
    assert status == 2, said
    assert "fail without any break, so that nothing can be said:\n    tests/test_one.py::test_one" in said


def test_a_package_from_elsewhere_ends_the_run(engine: Path, tmp_path: Path) -> None:
    """A test of the installed package would stay green whatever is broken in the copy."""
    other = tmp_path / "other"
    (other / "airflow_streamstate").mkdir(parents=True)
    (other / "airflow_streamstate" / "__init__.py").write_text("def double(number):\n    return 2 * number\n")
    first = f"import sys\nsys.path.insert(0, {str(other)!r})\nfrom airflow_streamstate import double\n"
    _test(engine.parents[1], first, "assert double(2) == 4")
    status, said = _run(engine)
    assert status == 1, said
    assert "the package that was tested is not the copy's" in said


def test_a_test_that_hangs_ends_the_run(engine: Path) -> None:
    """With a sentence that names it, and not silently."""
    engine.write_text(engine.read_text().replace("TEST_SECONDS = 300", "TEST_SECONDS = 2"))
    _test(engine.parents[1], "import signal\n", "signal.pause()")
    status, said = _run(engine)
    assert status == 1, said
    assert "this test did not end within 2 seconds: tests/test_one.py::test_one" in said


def test_what_is_ended_leaves_no_test_behind(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its children are in sessions of their own, which a signal to the engine does not reach."""
    running = tmp_path_factory.mktemp("signal") / "running"
    os.mkfifo(running)
    _test(engine.parents[1], "import signal\n", f"open({str(running)!r}, 'w').write('yes')", "signal.pause()")
    process = subprocess.Popen([sys.executable, str(engine)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert running.read_text() == "yes"
    process.terminate()
    said, _ = process.communicate(timeout=60)  # a child that is left would hold the output open
    assert process.returncode == 1
    assert b"ended by SIGTERM" in said
