"""Scripts and files of deployments, kept by digest in the home (Law 15)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from airflow_streamstate.errors import DataError, ObjectExistsError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.records import Artifact
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import disk_errors


def pin(home: Store, stream_id: str, name: str, body: bytes) -> Artifact:
    """Keep a file in the home under its digest, unless it is there already.

    Args:
        name: under which ``materialise`` places it; may have folders.
    """
    artifact = Artifact(name=name, sha256=hashlib.sha256(body).hexdigest())
    key = layout.artifact_key(stream_id, artifact.sha256, artifact.name)
    if home.head(key) is None:
        with contextlib.suppress(ObjectExistsError):  # the same bytes, pinned at the same moment
            home.create(key, body)
    return artifact


def read_pinned(home: Store, stream_id: str, artifact: Artifact) -> bytes:
    """The bytes of a pinned file, their digest checked.

    Raises:
        DataError: the home lacks it, or holds other bytes than were pinned.
    """
    key = layout.artifact_key(stream_id, artifact.sha256, artifact.name)
    stored = home.get(key)
    if stored is None or hashlib.sha256(stored.body).hexdigest() != artifact.sha256:
        raise DataError(
            "a pinned file is missing or altered",
            key=key,
            next_step="Put the original bytes back under this key, or deploy the version anew.",
        )
    return stored.body


def materialise(home: Store, stream_id: str, artifact: Artifact, folder: Path) -> Path:
    """The pinned file as a local file below ``folder``.

    Raises:
        DataError: as ``read_pinned``.
        UnavailableError, InvalidRequestError: the folder cannot be written; the disk is full.
    """
    body = read_pinned(home, stream_id, artifact)
    target = folder / artifact.name
    with disk_errors("materialise", artifact.name, folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or hashlib.sha256(target.read_bytes()).hexdigest() != artifact.sha256:
            _write_whole(target, body)
    return target


def _write_whole(target: Path, body: bytes) -> None:
    # A unique name: of two launches of one attempt at once, neither may move the other's half-written file.
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
