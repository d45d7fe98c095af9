"""Jars from a Maven repository, verified by pinned checksums, kept in the user's cache.

``STREAMSTATE_MAVEN_URL`` names another repository than Maven Central, where a mirror is the only way out.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from support.go_program import cache_folder

REPOSITORY = "https://repo1.maven.org/maven2"
TRIES = 3


def repository_url() -> str:
    """Where jars come from."""
    return os.environ.get("STREAMSTATE_MAVEN_URL", REPOSITORY).rstrip("/")


def pinned(listing: Path) -> dict[str, str]:
    """Path below a repository -> sha256, of a listing as ``sha256sum`` writes it."""
    lines = [line.split() for line in listing.read_text().splitlines() if line.strip()]
    return {path: digest for digest, path in lines}


def fetch_jars(name: str, jars: dict[str, str]) -> Path:
    """The folder of the cache with these jars, and no others, downloaded if they are not there yet.

    Raises:
        RuntimeError: one cannot be had, or is not what was pinned.
    """
    folder = cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        wanted = {path.rpartition("/")[2]: (path, digest) for path, digest in jars.items()}
        for there in folder.glob("*.jar"):
            if there.name not in wanted or _digest(there) != wanted[there.name][1]:
                there.unlink()
        missing = [(path, digest) for file, (path, digest) in wanted.items() if not (folder / file).is_file()]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda jar: _fetch(folder, *jar), missing))
    return folder


def _fetch(folder: Path, path: str, digest: str) -> None:
    url = f"{repository_url()}/{path}"
    reason = ""
    for _ in range(TRIES):
        try:
            with urllib.request.urlopen(url, timeout=120) as reply:  # noqa: S310 - what was pinned
                body = reply.read()
        except OSError as error:
            reason = str(error)
            continue
        if hashlib.sha256(body).hexdigest() != digest:
            raise RuntimeError(f"{url} is not what was pinned")
        half = folder / f".{digest}"
        half.write_bytes(body)
        half.replace(folder / path.rpartition("/")[2])
        return
    raise RuntimeError(f"{url} cannot be had: {reason}; STREAMSTATE_MAVEN_URL names another repository")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once download once
        yield
