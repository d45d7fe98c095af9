"""S3 servers on loopback: moto's, a real one if Go can build it, and the proxy before them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from airflow_streamstate.store.options import S3Options
from support.s3_proxy import Strike, StrikingProxy, Weather, striking_proxy
from support.versitygw import find_or_build, versitygw

__all__ = [
    "BUCKET",
    "REGION",
    "Strike",
    "StrikingProxy",
    "Weather",
    "options_for",
    "real_s3_server",
    "s3_server",
    "striking_proxy",
]

REGION = "us-east-1"
BUCKET = "streams"
ACCESS_KEY = "test-key"
SECRET_KEY = "test-secret"
used: set[str] = set()
"""The names of the servers that were started here, for a report of the run."""


def options_for(endpoint_url: str, **more: float) -> S3Options:
    """Options that reach a server of this module and nothing else."""
    return S3Options(
        region=REGION, endpoint_url=endpoint_url, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY, **more
    )


@contextmanager
def s3_server() -> Iterator[str]:
    """A running moto server with BUCKET in it; gives its endpoint URL."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line per request hides why a test is red
    server = make_server("127.0.0.1", 0, _one_at_a_time(DomainDispatcherApplication(create_backend_app)), threaded=True)
    thread = threading.Thread(target=server.serve_forever, name="moto")
    thread.start()
    used.add("moto")
    try:
        endpoint_url = f"http://127.0.0.1:{server.server_port}"
        make_bucket(endpoint_url)
        yield endpoint_url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _one_at_a_time(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """A server that does one thing after the other: moto answers 500 to a read during an overwrite."""
    lock = threading.Lock()

    def serve(environ: Any, start_response: Any) -> Iterable[bytes]:
        with lock:
            return [b"".join(app(environ, start_response))]

    return serve


@contextmanager
def real_s3_server() -> Iterator[str]:
    """A running versitygw with BUCKET in it, moto's server on a machine without Go; gives its endpoint URL."""
    program = find_or_build()
    if program is None:
        with s3_server() as endpoint_url:
            yield endpoint_url
        return
    with versitygw(program, ACCESS_KEY, SECRET_KEY, REGION) as endpoint_url:
        used.add("versitygw")
        make_bucket(endpoint_url)
        yield endpoint_url


def make_bucket(endpoint_url: str, name: str = BUCKET) -> None:
    """Make a bucket there."""
    session = boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)
    client = session.client("s3", region_name=REGION, endpoint_url=endpoint_url)
    client.create_bucket(Bucket=name)
    client.close()
