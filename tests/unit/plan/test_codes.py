"""``airflow_streamstate.plan.codes`` and ``airflow_streamstate.plan.codes``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import airflow_streamstate.plan
from airflow_streamstate.plan.codes import ADVICE, CODES, VERDICTS, advice, compared, difference, gravest

RULES = Path(airflow_streamstate.plan.__file__).parent


def test_every_code_is_given_by_a_rule_and_every_rule_gives_known_codes() -> None:
    """No code is a word without a rule behind it."""
    text = "".join(path.read_text() for path in RULES.glob("*.py") if path.name != "codes.py")
    assert [code for code in CODES if f'"{code}"' not in text] == []
    assert [code for code in ADVICE if f'"{code}"' not in text] == []
    said = set(re.findall(r'(?<!verdict=)difference\(\s*"([a-z-]+)"', text))
    assert said - set(CODES) == set()


def test_what_is_said_of_a_code_is_a_sentence() -> None:
    """Remedies are complete sentences, meanings a few lower-case words."""
    assert [code for code, known in CODES.items() if not known.remedy.endswith(".")] == []
    assert [code for code, known in CODES.items() if known.means.endswith(".")] == []
    assert {known.verdict for known in CODES.values()} == set(VERDICTS) - {"same"}


def test_the_gravest_difference_makes_the_verdict() -> None:
    """And it is first; the same one is reported once."""
    light, grave = difference("trigger-changed", "", "a"), difference("query-added", "", "b")
    found = compared([light, grave, light])
    assert found.verdict == "hazardous"
    assert found.codes == ("query-added", "trigger-changed")
    assert len(found.differences) == 2
    assert gravest([]) == "same"


def test_a_lighter_verdict_has_its_own_remedy() -> None:
    """No drain is advised where a restore is enough."""
    assert difference("query-dropped", "", "x", verdict="state-compatible").remedy.startswith(
        "This difference alone needs nothing"
    )
    assert "Drain" in difference("query-dropped", "", "x").remedy


def test_an_unknown_code_is_a_mistake() -> None:
    """Found where it is made."""
    with pytest.raises(KeyError):
        difference("no-such-code", "", "x")
    with pytest.raises(KeyError):
        advice("no-such-code", "", "x")
