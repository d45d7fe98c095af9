"""docs/reference/providers.md is counted from this package and the recorded counts of others, and names real tests."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROVIDERS = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "providers.py")))


@pytest.mark.parametrize("named", sorted(PROVIDERS.named_tests()))
def test_what_is_named_is_there(named: str) -> None:
    """File and function, as they are called today."""
    file, _, function = named.partition("::")
    assert f"def {function}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_a_row_without_a_test_is_something_that_is_not_here() -> None:
    """A feature of this package without a test is none."""
    ours = PROVIDERS.our_package()
    assert [row.feature for row in PROVIDERS.ROWS if not row.tests and (row.ours or row.count(ours))] == []


def test_a_kind_of_integration_that_is_lacking_is_not_in_the_metadata() -> None:
    """One that came since leaves the list."""
    assert set(PROVIDERS.LACKS).isdisjoint(PROVIDERS.our_package().info)


def test_the_rules_count_what_they_say(tmp_path: Path) -> None:
    """What a class extends counts; a class that is no operator does not."""
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "jobs.py").write_text(
        "class Base(BaseOperator):\n"
        "    template_fields_renderers: dict = {}\n"
        "    def __init__(self, *, deferrable: bool = False): ...\n"
        "class JobOperator(Base): ...\n"
        "class LinkOperator(BaseOperator): ...\n"
        "class Link: ...\n"
    )
    (tmp_path / "triggers.py").write_text("class JobTrigger(BaseTrigger):\n    async def on_kill(self): ...\n")
    package = PROVIDERS.package_of(tmp_path, {"plugins": [1]})
    counts = {row.feature: row.count(package) for row in PROVIDERS.ROWS if row.count}
    assert counts["keys of the provider's metadata"] == "1"
    assert counts["operators and sensors that can be deferred"] == "1 of 2"
    assert counts["operators and sensors with `template_fields_renderers`"] == "1 of 2"
    assert counts["triggers with `on_kill`: a user ends a deferred task (Airflow 3.3)"] == "1 of 1"
    assert counts["listeners of runs and tasks"] == ""


def test_the_page_is_as_the_package_and_the_tests_are() -> None:
    """It is written by ``python docs/providers.py``."""
    assert PROVIDERS.PAGE.read_text(encoding="utf-8") == PROVIDERS.page()
