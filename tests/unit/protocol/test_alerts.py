"""Alert rules that are given as text."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.policies import AlertRules, alert_values


def test_rules_are_given_as_texts_or_as_values() -> None:
    """As the shell and rendered fields have them."""
    given = {"no_commit_seconds": "300", "lag_over": "9", "lag_growing_seconds": "none", "off": "query_died, lag"}
    assert AlertRules().changed(alert_values(given)) == AlertRules(
        no_commit_seconds=300.0, lag_over=9, lag_growing_seconds=None, off=("query_died", "lag")
    )
    values = {"no_commit_seconds": 300, "lag_over": None, "off": ["lag"]}
    assert AlertRules().changed(alert_values(values)) == AlertRules(no_commit_seconds=300, off=("lag",))
    assert alert_values({"off": None}) == {"off": ()}


@pytest.mark.parametrize(
    ("given", "next_step"),
    [
        ({"no_comit_seconds": "3"}, "Did you mean no_commit_seconds?"),
        ({"off": "querydied"}, "Did you mean query_died?"),
        ({"off": 3}, "There are driver_dead"),
        ({"no_commit_seconds": "soon"}, "Use a number of seconds from 1 to 315,360,000."),
        ({"no_commit_seconds": "nan"}, "Use a number of seconds from 1 to "),
        ({"no_commit_seconds": True}, "Use a number of seconds from 1 to "),
        ({"lag_over": "1.5"}, "Use a whole number from 0 to 9,007,199,254,740,992."),
    ],
)
def test_what_is_no_rule_is_refused_with_the_nearest_one(given: dict[str, object], next_step: str) -> None:
    """Or with what can be given."""
    with pytest.raises(InvalidRequestError) as refused:
        AlertRules().changed(alert_values(given))
    assert refused.value.next_step.startswith(next_step)
