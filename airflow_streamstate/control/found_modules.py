"""Modules that drivers found while a script ran, and whether a controller believes that they are the script's.

A driver records such a module, and it cannot sign. A forged record would bring code into another deployment's driver at
its next launch. Where the home has a signing key, a controller signs a record itself if it sees the very same file in
the script's folder, which the signed ``DeploymentSpec`` names; every other one waits for ``streamstate home sign``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from airflow_streamstate.control.signatures import Signatures
from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.protocol.records import DeploymentSpec

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
    """Sign the records under these keys whose file lies beside the script as it was found."""
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
            if there.is_relative_to(folder.resolve()) and _sha256_of(there) == module["sha256"]:
                signatures.sign(record)


def _sha256_of(path: Path) -> str | None:
    """The digest of a regular file that is not too large; None for any other, which may block or never end."""
    with os.fdopen(os.open(path, _READ_FLAGS), "rb") as file:
        status = os.fstat(file.fileno())
        if not S_ISREG(status.st_mode) or status.st_size > MOST_MODULE_BYTES:
            return None
        return hashlib.sha256(file.read(status.st_size)).hexdigest()
