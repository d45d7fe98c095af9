"""One request id stands for one request, however often it is sent (Law 2)."""

from __future__ import annotations

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol.ids import check_id
from airflow_streamstate.protocol.records import RequestRecord
from airflow_streamstate.protocol.rehearsals import Rehearsal
from airflow_streamstate.protocol.upgrades import Upgrade

Recorded = RequestRecord | Rehearsal | Upgrade
"""What a request becomes in the home; each keeps the digest of what was asked for."""


def request_id_or_new(request_id: str | None, clock: Clock) -> str:
    """The given request id, or a new one where the caller gave none; raises InvalidRequestError where it is no id."""
    return clock.new_uuid() if request_id is None else check_id(request_id, "request id")


def check_same_request(recorded: Recorded, digest: str) -> None:
    """See that a request asks for the same as the one that was recorded under its id.

    Raises:
        ConflictError: it does not.
    """
    if recorded.request_digest != digest:
        raise ConflictError(
            "this request id was used for something else",
            request_id=recorded.request_id,
            **_became(recorded),
            recorded_at=recorded.created_at,
            next_step="Use a new request id; files and arguments belong to what one id stands for.",
        )


def _became(recorded: Recorded) -> dict[str, str]:
    if isinstance(recorded, Upgrade):
        return {"upgrade_id": recorded.upgrade_id}
    if isinstance(recorded, Rehearsal):
        return {"rehearsal_id": recorded.rehearsal_id}
    return {"verb": recorded.verb, "deployment_id": recorded.deployment_id}
