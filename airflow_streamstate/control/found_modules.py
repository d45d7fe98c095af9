"""Modules that drivers found while a script ran, and whether a controller believes that they are the script's.

A driver records such a module, and it cannot sign. A forged record would bring code into another deployment's driver at
its next launch. Where the home has a signing key, a controller signs a record itself if it sees the very same file in
the script's folder, which the signed ``DeploymentSpec`` names; every other one waits for ``streamstate home sign``.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from airflow_streamstate.control.signatures import Signatures
from airflow_streamstate.protocol.records import DeploymentSpec


def sign_those_beside(signatures: Signatures, spec: DeploymentSpec, keys: list[str]) -> None:
    """Sign the records under these keys whose file lies beside the script as it was found."""
    if not spec.script_path:
        return
    folder = Path(spec.script_path).parent
    for key in keys:
        record = signatures.look(key)
        if record is None or not record.is_new or record.plain.get("deployment_id") != spec.deployment_id:
            continue
        module = record.plain["module"]
        path = folder / str(module["name"])
        with suppress(OSError, ValueError):
            is_below = path.resolve().is_relative_to(folder.resolve())
            if is_below and hashlib.sha256(path.read_bytes()).hexdigest() == module["sha256"]:
                signatures.sign(record)
