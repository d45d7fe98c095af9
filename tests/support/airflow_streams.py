"""A home that an Airflow connection names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_streamstate.allowed import Allowed
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.store.options import S3Options, StoreOptions
from support.launches import end_processes
from support.scripted_stream import ScriptedStream

CONN_ID = "streamstate_default"
ALLOWED = Allowed(
    secrets=("env://*", "secret://*"),
    spark_connections=("spark_default", "spark_here", "spark_cluster", "nowhere"),
    stores=("/",),
)
"""What the connection lets versions name; tests of what is not allowed have their own connection."""


class NamedHome:
    """A home and the connection that names it.

    Attributes:
        base: an empty folder of the test; checkpoints and launches are below it.
    """

    def __init__(self, config: HomeConfig, base: Path) -> None:
        self.config = config
        self.base = base
        self.home = Home(config)

    @property
    def connection(self) -> str:
        """The connection as Airflow reads it from its environment."""
        s3 = self.config.options.s3
        return json.dumps(
            {
                "conn_type": "streamstate",
                "login": s3.access_key_id,
                "password": s3.secret_access_key,
                "extra": {
                    "home_uri": self.config.home_uri,
                    "checkpoints_uri": self.config.checkpoints_uri,
                    "work_dir": self.config.work_dir,
                    "region": s3.region,
                    "endpoint_url": s3.endpoint_url,
                    "allowed": self.config.allowed.joined(ALLOWED).to_json(),
                },
            }
        )

    def hook(self) -> StreamStateHook:
        """A hook on it."""
        return StreamStateHook(CONN_ID, requested_by="test")

    def stream(self, stream_id: str = "flights") -> ScriptedStream:
        """A stream of it, written by hand."""
        return ScriptedStream(self.home.home, self.home.checkpoints.uri, stream_id)

    def end_drivers(self) -> None:
        """End every driver that was launched for this home."""
        for folder in self.base.rglob("launches/[dr]-*"):
            if folder.is_dir():
                end_processes(str(folder))


@contextmanager
def named_home(
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    home_uri: str | None = None,
    s3: S3Options | None = None,
    *,
    begins: bool = True,
    allowed: Allowed | None = None,
) -> Iterator[NamedHome]:
    """A home on disk, or where ``home_uri`` points, named by the default connection; its drivers are ended afterwards.

    Without ``begins`` it is named and not made.
    """
    checkpoints_uri = None if home_uri is None else str(base / "checkpoints")
    options = StoreOptions(s3 or S3Options())
    config = HomeConfig(
        home_uri or str(base / "home"), checkpoints_uri, options, allowed=allowed or Allowed(stores=("/",))
    )
    with named_by(config, base, monkeypatch, begins=begins) as named:
        yield named


@contextmanager
def named_by(
    config: HomeConfig, base: Path, monkeypatch: pytest.MonkeyPatch, *, begins: bool = True
) -> Iterator[NamedHome]:
    """Any home, made and named by the default connection; drivers launched below ``base`` are ended afterwards."""
    named = NamedHome(config, base)
    if begins:
        named.home.begin("tests")
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", named.connection)
    try:
        yield named
    finally:
        named.end_drivers()
