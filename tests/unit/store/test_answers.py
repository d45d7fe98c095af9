"""What every server's answer has in common."""

from __future__ import annotations

from airflow_streamstate.store.server import Answer, RequestFailure


def test_only_what_may_pass_is_tried_again() -> None:
    """A refusal, an absence and a condition that does not hold are answers, not weather."""
    assert {answer for answer in Answer if answer.may_pass} == {Answer.BUSY, Answer.NOT_DONE, Answer.UNKNOWN}


def test_an_answer_without_a_body_is_mute() -> None:
    """Its status alone does not say what is missing; no connection is no answer at all."""
    assert RequestFailure(Answer.ABSENT, 404, "404", "").is_mute
    assert not RequestFailure(Answer.ABSENT, 404, "NoSuchKey", "").is_mute
    assert not RequestFailure(Answer.NOT_DONE, 0, "", "").is_mute
