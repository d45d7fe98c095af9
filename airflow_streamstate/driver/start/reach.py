"""Whether a driver on another machine sees the places that its controller sees, asked before the script runs.

A path of one machine may name nothing on another one, or an empty folder, in which Spark would begin anew.
"""

from __future__ import annotations

import socket

from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.base import Store

_NEXT_STEP = "Use S3, GCS or Azure, or a folder that every machine mounts at the same path."


def check_home(presence: HomePresence, home_id: str) -> None:
    """Check that this machine sees the home of this id.

    Raises:
        InvalidRequestError: it does not.
        UnavailableError, StoreRefusedError: the store does not answer.
    """
    found = presence.record_id()
    if found != home_id:
        raise InvalidRequestError(
            "the driver does not see the home" if found is None else "the driver sees another home",
            home=presence.home.uri,
            host=socket.gethostname(),
            next_step=_NEXT_STEP,
        )


def check_checkpoints(checkpoints: Store, stream_id: str, deployment_id: str) -> None:
    """Check that this machine sees the store of checkpoints that the controller sees; raises as ``check_home``."""
    if checkpoints.head(layout.witness_key(stream_id, deployment_id)) is None:
        raise InvalidRequestError(
            "the driver does not see the folder of the checkpoints",
            checkpoints=checkpoints.uri,
            host=socket.gethostname(),
            next_step=_NEXT_STEP,
        )
