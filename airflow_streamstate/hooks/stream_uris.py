"""The URI of a stream, as assets and lineage name it."""

from __future__ import annotations

from airflow_streamstate.protocol.redaction import redact_uri


def home_namespace(home_uri: str) -> str:
    """The URI of a home's streams, without credentials."""
    return f"streamstate://{redact_uri(home_uri).replace('://', '/').strip('/')}"


def stream_uri(home_uri: str, stream_id: str) -> str:
    """The URI of one stream."""
    return f"{home_namespace(home_uri)}/{stream_id}"
