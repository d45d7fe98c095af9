"""Where a request wants its snapshots to be kept, as far as that can be judged without the home."""

from __future__ import annotations

from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.records import NO_SNAPSHOTS
from airflow_streamstate.store.open import open_store


def checked_place(request: DeployRequest) -> str:
    """What the record of the deployment is to say: a whole URI, "none", or "" for with its checkpoints.

    Raises:
        InvalidRequestError: it names no store, or is not to be had with what else is asked for.
    """
    asked = request.snapshots
    if asked == NO_SNAPSHOTS:
        every = None if request.settings is None else request.settings.snapshot_every_seconds
        if every is not None:
            raise InvalidRequestError(
                "a deployment that keeps no snapshots takes none every so often",
                snapshot_every_seconds=every,
                next_step="Leave out the setting, or `--snapshots none`.",
            )
        return asked
    if not asked:
        return ""
    uri = open_store(asked).uri
    if uri in request.mirrors:
        raise InvalidRequestError(
            "a mirror is another place than that of the snapshots",
            mirror=uri,
            next_step="Name another disk, bucket or region.",
        )
    return uri
