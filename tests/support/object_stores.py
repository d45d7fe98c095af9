"""Stores on the servers of GCS and Azure Blob that the tests start."""

from __future__ import annotations

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.store.azure import AzureClient
from airflow_streamstate.store.gcs import GCSClient
from airflow_streamstate.store.obstore import ObstoreClient
from airflow_streamstate.store.options import GCSOptions
from airflow_streamstate.store.server import ServerStore
from support import azurite, gcs_server

PART_BYTES = 5 * 1024 * 1024


def object_client(server: str, endpoint_url: str, clock: Clock = SYSTEM_CLOCK) -> ObstoreClient:
    """The client of the one bucket or container there; ``server`` is "gcs" or "azure"."""
    if server == "gcs":
        return GCSClient(gcs_server.BUCKET, GCSOptions(endpoint_url=endpoint_url), clock=clock)
    return AzureClient(azurite.CONTAINER, azurite.options_for(endpoint_url), clock=clock)


def object_store(server: str, endpoint_url: str, prefix: str, *, clock: Clock = SYSTEM_CLOCK) -> ServerStore:
    """A store below a prefix of it, which puts in parts what is larger than PART_BYTES."""
    return ServerStore(object_client(server, endpoint_url, clock), prefix, upload_part_bytes=PART_BYTES)
