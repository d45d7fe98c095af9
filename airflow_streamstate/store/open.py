"""From a URI to a store: the one list of backends."""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.options import AzureOptions, GCSOptions, S3Options, StoreOptions

KNOWN_URIS = (
    "a folder path, file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
    "abfss://container@account.dfs.core.windows.net/prefix, memory://name"
)
_AZURE_HOST = re.compile(r"([a-z0-9]+)\.(dfs|blob)\.core\.[a-z0-9.-]+")

_memory_stores: dict[str, MemoryStore] = {}
_memory_guard = threading.Lock()


def open_store(
    uri: str, *, options: StoreOptions | None = None, clock: Clock = SYSTEM_CLOCK, makes_root: bool = True
) -> Store:
    """The store that the URI names. Asks neither disk nor network, so a store that opens may still be out of reach.

    Args:
        uri: one of KNOWN_URIS; two opens of one ``memory://name`` in one process share their objects.
        options: how to reach S3, GCS and Azure Blob; what they leave out comes from the environment.
        makes_root: as ``LocalStore``.

    Raises:
        InvalidRequestError: the URI names no known backend, or its client library is missing here.
    """
    scheme, separator, rest = uri.partition(":")
    options = options or StoreOptions()
    if not separator or "/" in scheme or scheme == "":
        return _open_folder(uri, clock, makes_root)
    if scheme == "file":
        return _open_folder(path_of_file_uri(uri), clock, makes_root)
    if scheme == "s3" and rest.startswith("//"):
        return _open_s3(uri, rest[2:], options.s3, clock)
    if scheme == "gs" and rest.startswith("//"):
        return _open_gcs(uri, rest[2:], options.gcs, clock)
    if scheme in ("az", "abfs", "abfss") and rest.startswith("//"):
        return _open_azure(uri, rest[2:], scheme, options.azure, clock)
    if scheme == "memory" and rest.startswith("//") and len(rest) > 2:
        with _memory_guard:
            return _memory_stores.setdefault(rest[2:], MemoryStore(rest[2:]))
    raise _bad_uri("this URI names no store that is known here", uri)


def _open_folder(path: str, clock: Clock, makes_root: bool) -> LocalStore:
    if not path.strip() or "\0" in path:
        raise _bad_uri("a store needs a folder", path)
    return LocalStore(local_folder(path), clock=clock, makes_root=makes_root)


def local_folder(path: str) -> Path:
    """The absolute path of a folder of this machine; a leading ``~`` or ``~user`` is a home folder.

    Raises:
        InvalidRequestError: this machine has no such user.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise _bad_uri("this machine has no user of that name", path) from error


def path_of_file_uri(uri: str) -> str:
    """The absolute path that a ``file:`` URI names; raises InvalidRequestError where it names none of this machine."""
    rest = uri.partition(":")[2]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise _bad_uri("a file URI cannot name another machine", uri)
        rest = slash + path
    if not rest.startswith("/"):
        raise _bad_uri("a file URI needs an absolute path", uri)
    return unquote(rest)


def _open_s3(uri: str, place: str, options: S3Options, clock: Clock) -> Store:
    bucket, prefix = _parts_of(uri, place)
    with _library("S3", uri, "boto3", "boto3>=1.40", ("boto3", "botocore")):
        # Imported only here: a driver whose home is a folder needs no boto3.
        from airflow_streamstate.store.s3 import s3_store
    return s3_store(bucket, prefix, options, clock=clock)


def _open_gcs(uri: str, place: str, options: GCSOptions, clock: Clock) -> Store:
    bucket, prefix = _parts_of(uri, place)
    with _library("GCS", uri, "obstore and google-auth", "airflow-streamstate[gcs]", ("obstore", "google", "requests")):
        from airflow_streamstate.store.gcs import gcs_store
    return gcs_store(bucket, prefix, options, clock=clock)


def _open_azure(uri: str, place: str, scheme: str, options: AzureOptions, clock: Clock) -> Store:
    head = f"{scheme}://{place.partition('/')[0]}"
    if scheme != "az":
        authority, slash, path = place.partition("/")
        container, _, host = authority.partition("@")
        found = _AZURE_HOST.fullmatch(host)
        if found is None:
            raise _bad_uri("this URI needs container@account.dfs.core.windows.net before the first slash", uri)
        options, place = replace(options, account_name=found[1]), f"{container}{slash}{path}"
    container, prefix = _parts_of(uri, place)
    with _library("Azure Blob", uri, "obstore", "airflow-streamstate[azure]", ("obstore",)):
        from airflow_streamstate.store.azure import azure_store
    return azure_store(container, prefix, options, head, clock=clock)


def _parts_of(uri: str, place: str) -> tuple[str, str]:
    bucket, _, prefix = place.partition("/")
    if not bucket or "@" in bucket or ":" in bucket:
        raise _bad_uri("this URI needs a bucket or container, and nothing else before the first slash", uri)
    return bucket, prefix.removesuffix("/")


@contextmanager
def _library(service: str, uri: str, wanted: str, package: str, modules: tuple[str, ...]) -> Iterator[None]:
    """Name the package to install where a client library is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in modules:
            raise
        raise InvalidRequestError(
            f"a store on {service} needs {wanted}, which is not installed here",
            uri=uri,
            next_step=f"Install it where this runs: `pip install '{package}'`.",
        ) from error


def _bad_uri(message: str, uri: str) -> InvalidRequestError:
    shown = re.sub(r"//.*@", "//***@", uri, flags=re.DOTALL)  # it may be a password
    return InvalidRequestError(message, uri=ascii(shown), next_step=f"Known are: {KNOWN_URIS}.")


# Whether what is sent to a URL can be read on its way: a token is good for everybody who has it.


def is_readable_on_its_way(url: str) -> bool:
    """Whether this is ``http`` to another machine than this one."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return True
    if parts.scheme.lower() != "http" or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
