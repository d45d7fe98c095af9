"""The request to adopt a query that ran without streamstate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.adoptions import ADOPT_SECONDS
from airflow_streamstate.protocol.ids import encode_query_name
from airflow_streamstate.store.open import local_folder
from airflow_streamstate.store.s3a import plain_uri


@dataclass(frozen=True)
class AdoptRequest:
    """A request to make a stream of one or more queries.

    Attributes:
        deploy: the script that goes on with them.
        checkpoints: the URI of each query's checkpoint, by query name.
        is_stopped: the user says that nothing runs on the checkpoints.
        deadline_seconds: how long a running query has to meet its barrier.

    Raises:
        InvalidRequestError: no checkpoint, a malformed name or URI, or several queries that run.
    """

    deploy: DeployRequest
    checkpoints: Mapping[str, str]
    is_stopped: bool = False
    deadline_seconds: float = ADOPT_SECONDS

    def __post_init__(self) -> None:
        if not self.checkpoints:
            raise InvalidRequestError("no checkpoint was named", next_step="Name the folder of the query's checkpoint.")
        for name, uri in self.checkpoints.items():
            encode_query_name(name)
            check_place(uri)
        if len(self.checkpoints) > 1 and not self.is_stopped:
            raise InvalidRequestError(
                "several queries that run cannot be adopted at once: the first that ends may end its driver, and cut"
                " the others' batches",
                queries=sorted(self.checkpoints),
                next_step="Stop the application yourself, and adopt them with --stopped.",
            )


def check_place(uri: str) -> None:
    """Check that a URI holds a place and no secret, since it is recorded and shown; raises InvalidRequestError."""
    scheme, separator, rest = uri.partition("://")
    host = rest.partition("/")[0]
    is_place = ":" not in host and "?" not in rest and ("@" not in host or scheme.strip() in ("abfs", "abfss"))
    if separator and scheme.strip() != "file" and not is_place:
        raise InvalidRequestError(
            "this URI of a checkpoint holds more than a place: a key, a password, a port or a query; it is not shown",
            next_step="Give scheme://bucket/folder; credentials come from the environment, or the connection.",
        )


def read_checkpoints(words: Sequence[str]) -> dict[str, str]:
    """Parse words ``[NAME=]URI``; without a name the query has that of its checkpoint's folder (1a.12).

    Raises:
        InvalidRequestError: a name or a place is given twice, or is missing.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, uri = word.partition("=")
        if not equals or "/" in name or ":" in name:
            name, uri = "", word
        check_place(uri)
        uri = plain_uri(uri) if uri.strip() else ""
        if uri and "://" not in uri and ":" not in uri.partition("/")[0]:
            uri = str(local_folder(uri))  # the next call may come from another working directory
        name = name or uri.rpartition("/")[2]
        if not uri or not name or uri.endswith(":"):
            raise InvalidRequestError(
                "this names no checkpoint", checkpoint=word, next_step="Give NAME=URI: a query and its folder."
            )
        if name in found or uri in found.values():
            raise InvalidRequestError(
                "two checkpoints are given for one query, or one for two",
                query_name=name,
                checkpoint=uri,
                next_step="Give each once, as NAME=URI.",
            )
        found[name] = uri
    return found
