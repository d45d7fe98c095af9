"""From a URI to a store: the one list of backends."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from urllib.parse import unquote

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.interface import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.options import S3Options

KNOWN_URIS = "a folder path, file:///path, s3://bucket/prefix, memory://name"

_memory_stores: dict[str, MemoryStore] = {}
_memory_guard = threading.Lock()


def open_store(uri: str, *, options: S3Options | None = None, clock: Clock = SYSTEM_CLOCK) -> Store:
    """The store that the URI names. Asks neither disk nor network, so a store that opens may still be out of reach.

    Args:
        uri: one of KNOWN_URIS; two opens of one ``memory://name`` in one process share their objects.
        options: how to reach S3; of no meaning elsewhere.
        clock: for waits between tries.

    Raises:
        InvalidRequestError: the URI names no known backend, or boto3 is missing for S3.
    """
    scheme, separator, rest = uri.partition(":")
    if not separator or "/" in scheme or scheme == "":
        return _open_folder(uri, clock)
    if scheme == "file":
        return _open_folder(_path_of_file_uri(uri, rest), clock)
    if scheme == "s3" and rest.startswith("//"):
        return _open_s3(uri, rest[2:], options or S3Options(), clock)
    if scheme == "memory" and rest.startswith("//") and len(rest) > 2:
        with _memory_guard:
            return _memory_stores.setdefault(rest[2:], MemoryStore(rest[2:]))
    raise _bad_uri("this is no store that is known here", uri)


def _open_folder(path: str, clock: Clock) -> LocalStore:
    if not path.strip() or "\0" in path:
        raise _bad_uri("a store needs a folder", path)
    return LocalStore(Path(path).expanduser(), clock=clock)


def _path_of_file_uri(uri: str, rest: str) -> str:
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise _bad_uri("a file URI cannot name another machine", uri)
        rest = slash + path
    if not rest.startswith("/"):
        raise _bad_uri("a file URI needs an absolute path", uri)
    return unquote(rest)


def _open_s3(uri: str, place: str, options: S3Options, clock: Clock) -> Store:
    bucket, _, prefix = place.partition("/")
    if not bucket or "@" in bucket or ":" in bucket:
        raise _bad_uri("an S3 URI needs a bucket, and nothing else before the first slash", uri)
    try:
        # Imported only here: a driver whose home is a folder needs no boto3.
        from airflow_streamstate.store.s3 import S3Store
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("boto3", "botocore"):
            raise
        raise InvalidRequestError(
            "a store on S3 needs boto3, which is not installed here",
            uri=uri,
            next_step="Install boto3 where this runs: `pip install 'boto3>=1.40'`.",
        ) from error
    return S3Store(bucket, prefix.removesuffix("/"), options, clock=clock)


def _bad_uri(message: str, uri: str) -> InvalidRequestError:
    shown = re.sub(r"//[^/]*@", "//***@", uri)  # what stands there in other URIs is a password
    return InvalidRequestError(message, uri=ascii(shown), next_step=f"Known are: {KNOWN_URIS}.")
