"""What the driver records of a start that it refuses."""

from __future__ import annotations

from airflow_streamstate.driver.shutdown.script_end import refusal_in
from airflow_streamstate.errors import InvalidRequestError, StartRefusedError


def test_the_next_step_of_a_refused_start_is_kept_apart() -> None:
    """It may be a long command, and the error is cut after a thousand characters."""
    found = refusal_in(StartRefusedError("rows would come twice", query_name="a", next_step="`x --secret s3cr3t`."),
                       lambda text: text.replace("s3cr3t", "***"))  # fmt: skip
    assert found is not None
    assert (found.error, found.next_step) == ("rows would come twice. query_name=a.", "`x --secret ***`.")
    assert found.is_refusal


def test_any_other_refusal_says_it_in_its_error() -> None:
    """As before."""
    found = refusal_in(InvalidRequestError("no such thing", next_step="Do X."))
    assert found is not None
    assert (found.error, found.next_step) == ("no such thing. Do X.", "")
