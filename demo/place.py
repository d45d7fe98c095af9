"""Where the demo runs: control objects on S3, and checkpoints alongside them or on local disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from airflow_streamstate.controller.home import HomeConfig

ROOT = Path(__file__).resolve().parents[1]
Written = Iterator[tuple[str, datetime]]
# What S3A must not do with moto's server; a real one needs nothing of the kind.
MOTO_CONF = {
    "spark.hadoop.fs.s3a.optimized.copy.from.local.enabled": "false",
    "spark.hadoop.fs.s3a.connection.expect.continue": "false",
}


@dataclass(frozen=True)
class Place:
    """Where home and checkpoints are.

    Attributes:
        environment: by which every command finds and reaches it.
        conf: what Spark needs to reach it.
        written: keys below a folder of the checkpoints, and when each was written.
        commit_note: what must be known of the times of commits; "" for nothing.
        commit_seconds: how far two readers of the times of two commits may differ.
    """

    config: HomeConfig
    words: str
    environment: dict[str, str]
    conf: dict[str, str]
    written: Callable[[str], Written]
    commit_note: str = ""
    commit_seconds: float = 0.002  # the audit reports milliseconds


@contextmanager
def place(out: Path, *, checkpoints_on_s3: bool) -> Iterator[Place]:
    """A running S3 server on loopback with the home in it; the environment then names the home for every command."""
    from support import s3_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line per request
    serving = s3_server.real_s3_server if checkpoints_on_s3 else s3_server.s3_server
    with serving() as endpoint_url:
        environment = {
            "AWS_ENDPOINT_URL_S3": endpoint_url,
            "AWS_REGION": s3_server.REGION,
            "AWS_ACCESS_KEY_ID": s3_server.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": s3_server.SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
            "STREAMSTATE_HOME": f"s3://{s3_server.BUCKET}/home",
        }
        os.environ.update(environment)
        if checkpoints_on_s3:
            server = "versitygw" if "versitygw" in s3_server.used else "moto"
            there = _on_s3(environment, s3_server.BUCKET, server, out)
        else:
            there = _on_disk(environment, out)
        for name in ("STREAMSTATE_CHECKPOINTS", "STREAMSTATE_WORK_DIR"):
            os.environ.pop(name, None)
        os.environ.update(there.environment)
        yield there


def _on_disk(environment: dict[str, str], out: Path) -> Place:
    checkpoints = out / "checkpoints"

    def written(folder: str) -> Written:
        for path in (checkpoints / folder).rglob("*"):
            if path.is_file():
                yield str(path.relative_to(checkpoints)), datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)

    return Place(
        HomeConfig(environment["STREAMSTATE_HOME"], str(checkpoints)),
        "an S3 server on loopback (drain notifications are objects there); checkpoints on local disk",
        {**environment, "STREAMSTATE_CHECKPOINTS": str(checkpoints)},
        {},
        written,
    )


def _on_s3(environment: dict[str, str], bucket: str, server: str, out: Path) -> Place:
    import boto3

    launches = out / "launches"
    client = boto3.client("s3")

    def written(folder: str) -> Written:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"home/{folder}/"):
            for found in page.get("Contents", ()):
                yield found["Key"].removeprefix("home/"), found["LastModified"]

    named = {
        "versitygw": "versitygw, a real S3 server, on loopback",
        "moto": "moto's S3 server on loopback (no Go here to build versitygw, the real one)",
    }[server]
    return Place(
        HomeConfig(environment["STREAMSTATE_HOME"], work_dir=str(launches)),
        f"{named}: drain notifications, checkpoints through S3A, and snapshots are objects there",
        {**environment, "STREAMSTATE_WORK_DIR": str(launches)},
        MOTO_CONF if server == "moto" else {},
        written,
        "S3 reports the time of a commit to the second.",
        2.0,
    )
