"""Scripts, modules and files of deployments, kept by digest in the home (Law 15)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from airflow_streamstate.control.signatures import Signatures
from airflow_streamstate.errors import DataError, MalformedMessageError, ObjectExistsError, ObjectMissingError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.terms.version import Artifact
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import disk_errors
from airflow_streamstate.store.transfer import pieces_of, put_pieces


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


def pin_pieces(home: Store, stream_id: str, artifact: Artifact, pieces: Iterable[bytes], size_bytes: int) -> None:
    """As ``pin``, of a file of this digest that may be larger than memory.

    Args:
        pieces: its bytes; what they raise is raised, and nothing was pinned.
        size_bytes: of all of them.
    """
    key = layout.artifact_key(stream_id, artifact.sha256, artifact.name)
    if home.head(key) is None:
        put_pieces(home, key, pieces, size_bytes)


def read_pinned(home: Store, stream_id: str, artifact: Artifact) -> bytes:
    """The bytes of a pinned file, their digest checked.

    Raises:
        DataError: the home lacks it, or holds other bytes than were pinned.
    """
    return b"".join(_pieces(home, stream_id, artifact))


def check_pinned(home: Store, stream_id: str, artifact: Artifact) -> None:
    """Check a pinned file, which may be larger than memory; raises as ``read_pinned``."""
    for _ in _pieces(home, stream_id, artifact):
        pass


def materialise(home: Store, stream_id: str, artifact: Artifact, folder: Path) -> Path:
    """The pinned file as a local file below ``folder``.

    Raises:
        DataError: as ``read_pinned``.
        UnavailableError, InvalidRequestError: the folder cannot be written; the disk is full.
    """
    target = folder / artifact.name
    with disk_errors("materialise", artifact.name, folder):
        if target.is_file() and _sha256_of(target) == artifact.sha256:
            return target
    pieces = _pieces(home, stream_id, artifact)
    first = next(pieces)  # what is not there leaves no folder
    with disk_errors("materialise", artifact.name, folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(target, itertools.chain((first,), pieces))
    return target


def _pieces(home: Store, stream_id: str, artifact: Artifact) -> Iterator[bytes]:
    """The bytes of a pinned file; the last piece only where all have its digest."""
    key = layout.artifact_key(stream_id, artifact.sha256, artifact.name)
    digest, held = hashlib.sha256(), None
    with contextlib.suppress(ObjectMissingError):
        for piece in pieces_of(home, key):
            digest.update(piece)
            if held is not None:
                yield held
            held = piece
    if held is None or digest.hexdigest() != artifact.sha256:
        raise DataError(
            "a pinned file is missing or altered",
            key=key,
            next_step="Put the original bytes back under this key, or deploy the version again.",
        )
    yield held


def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _write_whole(target: Path, pieces: Iterable[bytes]) -> None:
    # A unique name: of two launches of one attempt at once, neither may move the other's half-written file.
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# Modules that drivers found while a script ran, and whether a controller believes that they are the script's.
#
# A driver records such a module, and it cannot sign. A forged record would bring code into another deployment's
# driver at its next launch. Where the home has a signing key, a controller signs a record itself if it sees the very
# same file in the script's folder, which the signed ``DeploymentSpec`` names; every other one waits for ``streamstate
# home sign``.

MOST_MODULES = 2_000
"""That one deployment's drivers may have found: each is read at each launch, and pinned."""
MOST_MODULE_BYTES = 64 << 20
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


def bounded_keys(prefix: str, keys: Iterable[str]) -> list[str]:
    """The records below a prefix, sorted.

    Raises:
        MalformedMessageError: they are more than drivers of a real script find; without all of them it would run
            other code.
    """
    found = sorted(islice(keys, MOST_MODULES + 1))
    if len(found) > MOST_MODULES:
        raise MalformedMessageError(
            "this deployment has more records of modules than a script may have",
            prefix=prefix,
            most=MOST_MODULES,
            next_step="Look who wrote them, and remove those that no driver of yours wrote.",
        )
    return found


def sign_those_beside(signatures: Signatures, spec: DeploymentSpec, keys: list[str]) -> None:
    """Sign the records under these keys whose file is next to the script as it was found."""
    if not spec.version.script_path:
        return
    folder = Path(spec.version.script_path).parent
    for key in keys:
        record = signatures.look(key)
        if record is None or not record.is_new or record.plain.get("deployment_id") != spec.deployment_id:
            continue
        module = record.plain["module"]
        path = folder / str(module["name"])
        with suppress(OSError, ValueError):
            there = path.resolve()
            if there.is_relative_to(folder.resolve()) and _digest_of_module(there) == module["sha256"]:
                signatures.sign(record)


def _digest_of_module(path: Path) -> str | None:
    """The digest of a regular file that is not too large; None for any other, which may block or never end."""
    with os.fdopen(os.open(path, _READ_FLAGS), "rb") as file:
        status = os.fstat(file.fileno())
        if not S_ISREG(status.st_mode) or status.st_size > MOST_MODULE_BYTES:
            return None
        return hashlib.sha256(file.read(status.st_size)).hexdigest()
