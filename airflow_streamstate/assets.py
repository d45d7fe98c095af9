"""Streams as Airflow assets: ``streamstate://HOME/STREAM``, and its complete partitions.

It imports little: Airflow's provider discovery imports this module wherever it reads asset URIs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from airflow_streamstate.protocol.ids import is_id

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Asset

SCHEME = "streamstate"
COMPLETE, EMITTED = "complete", "emitted"
"""Parts of the URIs of a stream's complete partitions, and of what was emitted of these."""
_HOME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
_FORM = "streamstate://HOME/STREAM, with HOME the id of the connection and STREAM the id of the stream"


def normalized_uri(parts: SplitResult) -> SplitResult:
    """The one form of a stream's URI, for Airflow's asset URIs; the home in small letters.

    Raises:
        ValueError: it has credentials, a port, a query or another path than one stream.
    """
    if "@" in parts.netloc:  # the message repeats nothing of it
        raise ValueError(f"an asset URI names no user and no password: use {_FORM}")
    if ":" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"an asset URI of a stream has no port, query or fragment: use {_FORM}")
    home, path = parts.netloc.lower(), parts.path.strip("/")
    stream_id, slash, part = path.partition("/")
    if not _HOME.fullmatch(home) or not is_id(stream_id) or (slash and part not in (COMPLETE, f"{COMPLETE}/{EMITTED}")):
        raise ValueError(
            f"this asset URI names no home and stream: home={home[:63]!a} stream={path[:63]!a}. Use {_FORM}"
        )
    return parts._replace(scheme=SCHEME, netloc=home, path=f"/{path}")


def stream_asset(home: str, stream_id: str) -> Asset:
    """The asset of a stream, as outlet of a task or as schedule of a DAG.

    Args:
        home: the id of the connection that names the home: the same in every DAG.
        stream_id: the stream.

    Raises:
        ValueError: one of them cannot be part of a URI.
    """
    return _asset(home, stream_id)


def partitions_asset(home: str, stream_id: str) -> Asset:
    """The asset whose partitions are the complete spans of a stream's event time; arguments as ``stream_asset``."""
    return _asset(home, f"{stream_id}/{COMPLETE}")


def _asset(home: str, path: str) -> Asset:
    from airflow.providers.common.compat.sdk import Asset

    uri = normalized_uri(SplitResult(SCHEME, home, f"/{path}", "", "")).geturl()
    return Asset(name=uri.partition("://")[2], uri=uri)
