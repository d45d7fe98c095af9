"""One request id stands for one request (Law 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol.ids import check_id

if TYPE_CHECKING:  # a verb that only looks needs none of the three
    from airflow_streamstate.protocol.records import RequestRecord
    from airflow_streamstate.protocol.scratch import ScratchRun
    from airflow_streamstate.protocol.upgrades import Upgrade

Recorded: TypeAlias = "RequestRecord | ScratchRun | Upgrade"
"""The record of a request; each kind keeps the digest of the request."""
_BECAME: Mapping[str, Mapping[str, str]] = {
    "RequestRecord": {"verb": "verb", "deployment_id": "deployment_id"},
    "ScratchRun": {"rehearsal_id": "run_id"},
    "Upgrade": {"upgrade_id": "upgrade_id"},
}
"""What a request became, by the kind of its record: the name in an error, and the field."""


def request_id_or_new(request_id: str | None, clock: Clock) -> str:
    """The given request id, or a new one for None. Raises InvalidRequestError for a malformed id."""
    return clock.new_uuid() if request_id is None else check_id(request_id, "request id")


def check_same_request(recorded: Recorded, digest: str) -> None:
    """Raise ConflictError where a request id was recorded for a request with another digest."""
    if recorded.request_digest != digest:
        raise ConflictError(
            "this request id was used for something else",
            request_id=recorded.request_id,
            **{name: getattr(recorded, of) for name, of in _BECAME[recorded.kind].items()},
            recorded_at=recorded.created_at,
            next_step="Use a new request id; one id stands for one set of files and arguments.",
        )
