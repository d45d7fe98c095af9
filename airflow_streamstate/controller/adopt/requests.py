"""What a user asks for when a query that is not ours is to become a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.ids import encode_query_name
from airflow_streamstate.store.open import local_folder
from airflow_streamstate.store.s3a import plain_uri

DEADLINE_SECONDS = 300.0


@dataclass(frozen=True)
class AdoptRequest:
    """A query that is to be gone on with as a stream.

    Attributes:
        deploy: the script that goes on with it.
        checkpoints: where its checkpoints lie, by query.
        is_stopped: nothing runs on them, by the user's word.
        deadline_seconds: until when a running query must have met its barrier.

    Raises:
        InvalidRequestError: something of it cannot be.
    """

    deploy: DeployRequest
    checkpoints: Mapping[str, str]
    is_stopped: bool = False
    deadline_seconds: float = DEADLINE_SECONDS

    def __post_init__(self) -> None:
        if not self.checkpoints:
            raise InvalidRequestError("no checkpoint was named", next_step="Name where the query's checkpoint lies.")
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
    """See that a URI says where, and nothing else: it is recorded, and shown.

    Raises:
        InvalidRequestError: it holds what may be a secret; which is not told.
    """
    scheme, separator, rest = uri.partition("://")
    host = rest.partition("/")[0]
    is_place = ":" not in host and "?" not in rest and ("@" not in host or scheme.strip() in ("abfs", "abfss"))
    if separator and scheme.strip() != "file" and not is_place:
        raise InvalidRequestError(
            "this URI of a checkpoint holds more than a place: a key, a password, a port or a query; it is not shown",
            next_step="Give scheme://bucket/folder; credentials come from the environment, or the connection.",
        )


def read_checkpoints(words: Sequence[str]) -> dict[str, str]:
    """``[NAME=]URI`` each; without a name the query has that of its checkpoint's folder, as the runtime would name it.

    Raises:
        InvalidRequestError: a name or a place is given twice, or there is no name to be had.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, uri = word.partition("=")
        if not equals or "/" in name or ":" in name:
            name, uri = "", word
        check_place(uri)
        uri = plain_uri(uri) if uri.strip() else ""
        if uri and "://" not in uri and ":" not in uri.partition("/")[0]:
            uri = str(local_folder(uri))  # recorded: another call may be made from another folder
        name = name or uri.rpartition("/")[2]
        if not uri or not name or uri.endswith(":"):
            raise InvalidRequestError(
                "this names no checkpoint", checkpoint=word, next_step="Give NAME=URI: a query, and its folder."
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
