"""What the python of drivers has, which need not be the one of the shell: it belongs to the Spark that is used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ASK_SECONDS = 30
_ASK = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_BUILT_WITH = re.compile(r"^# Protobuf Python Version: ([0-9.]+)", re.MULTILINE)


def driver_python(environ: Mapping[str, str]) -> str:
    """The interpreter that a driver started from here runs in."""
    return environ.get("PYSPARK_DRIVER_PYTHON") or environ.get("PYSPARK_PYTHON") or sys.executable


def versions_in(python: str, packages: Sequence[str]) -> dict[str, str] | None:
    """The versions of those of these packages that an interpreter has; None where it does not answer."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK, *packages],
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return {str(name): str(version) for name, version in found.items()}


def protobuf_wanted(spark_home: Path | None) -> str:
    """The oldest protobuf that this Spark's own python code runs with; "" where it does not say.

    Protobuf refuses code that a newer one generated: a worker of transformWithState then dies, and Spark only says that
    it did.
    """
    for folder in ("", "python/pyspark"):
        generated = (spark_home or Path()) / folder / "sql" / "streaming" / "proto" / "StateMessage_pb2.py"
        if spark_home is not None and generated.is_file():
            found = _BUILT_WITH.search(generated.read_text(encoding="utf-8", errors="replace"))
            return found[1] if found else ""
    return ""


def is_older(version: str, wanted: str) -> bool:
    """Whether a version is older than the one that is wanted; "" wants nothing."""
    return bool(wanted) and _numbers(version) < _numbers(wanted)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:3])
