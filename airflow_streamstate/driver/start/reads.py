"""What the script read before this start, held against what it read before the start that the state is from.

It names causes and decides nothing: what fails here becomes a remark.
"""

from __future__ import annotations

from airflow_streamstate.control.script_reads import last_reads, record_reads
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.reporting import MAX_REASON_CHARACTERS
from airflow_streamstate.protocol.script_reads import ReadChange, ScriptReads, compare_reads, told

NOT_COMPARED = "what the script read is not compared with the last start"
NOT_RECORDED = "what the script read is not recorded"


def what_changed(attempt: Attempt, query_name: str) -> tuple[str, ...]:
    """Sentences on what the script read otherwise than at the last start of this query; none where nothing is known.

    Call it before ``record_after_start``. Raises nothing.
    """
    try:
        return told(_changes(attempt, query_name))
    except Exception as error:
        return (f"{NOT_COMPARED}: {_words(attempt, error)}",)


def record_after_start(attempt: Attempt, query_name: str) -> tuple[str, ...]:
    """Record what the script had read before this start; a remark where that failed, else nothing.

    After the start, so that a refused one leaves the record of the start that the state is from. Raises nothing.
    """
    if not attempt.opened.has_begun:
        return ()
    try:
        record_reads(attempt.control, _now(attempt, query_name))
    except Exception as error:
        return (f"{NOT_RECORDED}: {_words(attempt, error)}",)
    return ()


def _changes(attempt: Attempt, query_name: str) -> tuple[ReadChange, ...]:
    if not attempt.opened.has_begun:
        return ()
    for deployment_id in _deployments(attempt):
        before = last_reads(attempt.control, deployment_id, query_name)
        if before is not None:
            return compare_reads(before, _now(attempt, query_name))
    return ()


def _deployments(attempt: Attempt) -> list[str]:
    """This deployment, and that of the state with which it began."""
    manifest = attempt.start.manifest()
    before = attempt.spec.start.predecessor_id if manifest is None else manifest.deployment_id
    return [attempt.deployment_id, *(each for each in (before,) if each is not None)]


def _now(attempt: Attempt, query_name: str) -> ScriptReads:
    opened = attempt.opened
    return ScriptReads(
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        attempt=attempt.number,
        query_name=query_name,
        files=opened.files(),
        write_id=attempt.clock.new_uuid(),
        recorded_at=attempt.clock.now(),
        others=opened.others,
        variables=opened.variables(attempt.spec.version.environment, attempt.reporter.redacted),
    )


def _words(attempt: Attempt, error: Exception) -> str:
    return attempt.reporter.shortened(f"{type(error).__name__}: {error}", MAX_REASON_CHARACTERS, in_a_line=True)
