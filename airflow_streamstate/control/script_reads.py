"""Records of what scripts read, in a home: one for each query and attempt."""

from __future__ import annotations

from contextlib import suppress

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, ObjectExistsError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.script_reads import ScriptReads
from airflow_streamstate.store.transfer import keys_below


def record_reads(control: StreamControl, reads: ScriptReads) -> None:
    """Record what was read before the first start of a query in an attempt; a later start of it changes nothing.

    Raises:
        UnavailableError, OutcomeUnknownError: the store does not answer.
    """
    with suppress(ObjectExistsError):
        control.cells.create(
            layout.script_reads_key(control.stream_id, reads.deployment_id, reads.query_name, reads.attempt), reads
        )


def last_reads(control: StreamControl, deployment_id: str, query_name: str) -> ScriptReads | None:
    """The newest readable record of a query in a deployment; None for none (Law 7).

    Raises:
        UnavailableError: the store does not answer.
    """
    prefix = layout.script_reads_prefix(control.stream_id, deployment_id, query_name)
    for key in sorted(keys_below(control.cells.store, prefix), reverse=True):
        with suppress(DataError):
            found = control.cells.value(key, ScriptReads, stream_id=control.stream_id, deployment_id=deployment_id)
            if found is not None:
                return found
    return None
