"""What a person can do about a deployment that failed: by what is known of how it came to that."""

from __future__ import annotations

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.one_time_sources import OneTimeSources, consent, why_in_words
from airflow_streamstate.controller.observe.state import State
from airflow_streamstate.protocol.events import DrainFailed, Failed, QueryFailed
from airflow_streamstate.protocol.ids import upgrade_of_return
from airflow_streamstate.protocol.records import DeploymentSpec

_ENDED_ITSELF = "SystemExit: "
_OF_A_QUERY = "[STREAM_FAILED]"
"""In Spark's words for a query that failed; a hint for people, by which nothing is decided (Law 13)."""
_SIGNALS_FROM = 128


def next_step_of(seen: Observation, state: State, repeats: str = "", one_time: OneTimeSources | None = None) -> str:
    """What can be done, one sentence, the first of it what is most likely wanted; "" where nothing has to be.

    Args:
        seen: the deployment.
        state: of it.
        repeats: what a resume runs again, in words (``repeating.foreseen_in_words``).
        one_time: queries of it that no resume can start again; None for none.
    """
    if state not in ("failed", "degraded"):
        return ""
    if one_time:
        return _of_one_time_sources(seen, state, one_time)
    if state == "degraded":
        return _of_failed_queries(seen)
    failed = seen.terminal
    return _of_words(seen, failed) if isinstance(failed, Failed) else _of_no_last_word(seen, repeats)


def _of_one_time_sources(seen: Observation, state: State, one_time: OneTimeSources) -> str:
    """A resume, or a rollback, would be refused: a deploy alone goes on, and says what it loses."""
    is_cut_off = state == "failed" and not isinstance(seen.terminal, Failed)
    begin = "" if is_cut_off else "Mend what the error names, then "
    verb = "deploy" if state == "failed" else "upgrade"
    return (
        f"{begin}`streamstate {verb} {seen.stream_id}` with {consent(one_time)}: it keeps the state, and what was sent"
        " since, or was read and not committed, is lost; a resume is refused"
        f" ({why_in_words(one_time)}); {_log(seen)}."
    )


def _of_failed_queries(seen: Observation) -> str:
    """The other queries run: what starts the failed one again stops them first, between two batches."""
    stream_id, failed = seen.stream_id, seen.failed_queries.values()
    skip = ""
    if any(event.planned_batch_id is not None for event in failed):
        skip = f"; where that batch can never run, `streamstate skip {stream_id}` after the stop passes it over"
    return (
        f"Mend the script and `streamstate upgrade {stream_id}`{_back(seen.spec)}: the failed query goes on where it"
        f" stood; where the cause was outside of it, `streamstate stop {stream_id} --wait 300` and `streamstate resume"
        f" {stream_id}` run it again{skip}; {_log(seen)}."
    )


def next_step_of_drain(seen: Observation, event: object) -> str:
    """The same of a drain that came to nothing.

    Args:
        seen: the deployment.
        event: what said so; only a ``DrainFailed`` has choices.
    """
    has_choices = isinstance(event, DrainFailed) and bool(event.choices)
    what = "Do one of what the error names" if has_choices else f"`streamstate status {seen.stream_id}` shows it"
    return f"{what}; {_log(seen)}."


def _of_words(seen: Observation, failed: Failed) -> str:
    resume, back = f"`streamstate resume {seen.stream_id}`", _back(seen.spec)
    if failed.error.startswith(_ENDED_ITSELF):
        said = f"what it said, such as how its arguments are to be given, is in `streamstate logs {seen.stream_id}`"
        return f"The script ended itself: {said}; deploy it again as it wants to be called{back}."
    if failed.is_refusal:
        return f"Change what the error names, and deploy the script again{back}; {_log(seen)}."
    if not failed.traceback:
        return f"Mend what the error names, then {resume}, or deploy another version{back}; {_log(seen)}."
    skip = f"; where one batch can never run, `streamstate skip {seen.stream_id}` passes it over"
    skips = skip if _has_planned_batch(seen, failed) else ""
    outside = f"where the cause was outside of it, {resume} runs it again"
    return f"Mend the script and deploy it again{back}; {outside}{skips}; {_log(seen)}."


def _has_planned_batch(seen: Observation, failed: Failed) -> bool:
    """Whether a query that failed had planned a batch, which alone can be skipped; of older drivers, whether a query
    failed at all."""
    told = list(seen.of_kind(QueryFailed))
    if told:
        return any(event.planned_batch_id is not None for event in seen.failed_queries.values())
    return bool(failed.query_name) or _OF_A_QUERY in failed.error + failed.traceback


def _of_no_last_word(seen: Observation, repeats: str) -> str:
    """It was cut off, or its driver never came to the script: then that is what is to be mended."""
    resume, status = f"`streamstate resume {seen.stream_id}`", seen.launch_status
    if seen.is_closed:
        return f"{resume} starts another driver for it."
    exit_code = None if status is None else status.exit_code
    if not exit_code or exit_code > _SIGNALS_FROM:
        told = f" ({repeats})" if repeats else ""
        return f"{resume} goes on where it was cut off, without a lost row{told}; {_log(seen)}."
    other = "where that is a setting of this version, deploy it again with another"
    return f"Mend what the reason names, then {resume}; {other}{_back(seen.spec)}; {_log(seen)}."


def _log(seen: Observation) -> str:
    return f"`streamstate logs {seen.stream_id}` has the whole log"


def _back(spec: DeploymentSpec) -> str:
    """Where there is a version before that may be well; of one that was gone back from nobody knows that."""
    if spec.start.predecessor_id is None or upgrade_of_return(spec.request_id) is not None:
        return ""
    return f", or `streamstate rollback {spec.stream_id}` to the version before"
