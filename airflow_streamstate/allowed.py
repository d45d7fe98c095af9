"""What the reader of a home allows it to name: secrets, places of drivers, Spark connections, other stores.

A home's objects are written by others, drivers among them. Whatever they name that reaches beyond the home is compared
with this list, which comes from the reader's own configuration: the connection of the home, or the file of the shell.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import ClassVar, TypeVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import LOCAL, plain_options
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.store.open import local_folder, path_of_file_uri

_FIELDS = ("secrets", "launchers", "spark_connections", "stores", "files")
_PLACE_FIELDS = ("launcher", "conn_id", "options")
_FORM = (
    '{"secrets": ["env://PG_*"], "launchers": [{"launcher": "kubernetes", "options": {"context": "prod"}}],'
    ' "spark_connections": ["spark_default"], "stores": ["s3://mirror/streams"],'
    ' "files": ["/opt/jars"]}'
)
_ANY = "*"
_WITHIN = "[A-Za-z0-9._-]*"
_UNNAMED = "the list of what is allowed for this home"
_T = TypeVar("_T")


@dataclass(frozen=True)
class AllowedPlace(View):
    """A place where drivers may be: one launcher, with what decides whom it reaches.

    Attributes:
        options: the values of the launcher's reaching options; one that is missing must not be given. In what is
            allowed ``*`` alone matches any value, also a missing one; within a text it matches letters, digits, ``.``,
            ``_`` and ``-``, so that it spans no two items of a list.
    """

    form: ClassVar[str] = "launcher conn_id? options?"

    launcher: str
    conn_id: str = ""
    options: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(
        cls, launcher: str, conn_id: str, options: Mapping[str, object], reaching: Collection[str] | None
    ) -> AllowedPlace:
        """The place that these options reach; ``reaching``: as ``Launcher.reaching``, None for all of them."""
        plain = plain_options(options)
        kept = {name: value for name, value in plain.items() if reaching is None or name in reaching}
        return cls(launcher, conn_id, dict(sorted(kept.items())))


@dataclass(frozen=True)
class Allowed(View):
    """What objects of one home may name beyond it. Empty: drivers on this machine, without secrets.

    Attributes:
        secrets: references, or patterns of them (``env://PG_*``); one without ``#part`` covers every part.
        launchers: where drivers may be; once any place is named, this machine has to be named, too.
        stores: URIs of mirrors and of places of snapshots; one covers all below it.
        files: files and folders of this machine that a version may have sent to drivers elsewhere, in addition to its
            pinned ones; a folder covers all below it.
        where: where a person adds to it, for errors; "" for nowhere.
    """

    form: ClassVar[str] = "secrets launchers spark_connections stores files"

    secrets: tuple[str, ...] = ()
    launchers: tuple[AllowedPlace, ...] = ()
    spark_connections: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    where: str = field(default="", compare=False)

    @classmethod
    def parse(cls, raw: object, where: str = "") -> Allowed:
        """The list as it is configured: a JSON object or its text; None and "" allow nothing.

        Raises:
            InvalidRequestError: it is none.
        """
        given = _object(raw, where)
        unknown = sorted(set(given) - set(_FIELDS))
        if unknown:
            raise _malformed(where, f"it has no field {unknown[0]!r}")
        places = given.get("launchers") or []
        if not isinstance(places, list):
            raise _malformed(where, "launchers is no list")
        return cls(
            secrets=_texts(given, "secrets", where),
            launchers=tuple(_place(one, where) for one in places),
            spark_connections=_texts(given, "spark_connections", where),
            stores=_texts(given, "stores", where),
            files=_texts(given, "files", where),
            where=where,
        )

    @property
    def summary(self) -> str:
        """What it allows, in one human-readable line; "" for nothing."""
        places = (json.dumps(place.to_json(), ensure_ascii=False) for place in self.launchers)
        return ", ".join((*self.secrets, *places, *self.spark_connections, *self.stores, *self.files))

    @property
    def is_default(self) -> bool:
        """Whether it names no more than an empty list allows."""
        return self in (Allowed(), Allowed(launchers=(AllowedPlace(LOCAL),)))

    def joined(self, other: Allowed) -> Allowed:
        """What this list or the other one allows."""
        return replace(
            self,
            secrets=_union(self.secrets, other.secrets),
            launchers=_union(self.launchers, other.launchers),
            spark_connections=_union(self.spark_connections, other.spark_connections),
            stores=_union(self.stores, other.stores),
            files=_union(self.files, other.files),
        )

    def check_secret(self, reference: str, **facts: object) -> None:
        """Raise InvalidRequestError where this reference may not be looked up; ``facts`` are for its message."""
        whole = reference.partition("#")[0]
        if not any(fnmatchcase(text, pattern) for pattern in self.secrets for text in (reference, whole)):
            raise self._refusal(
                "this secret is not allowed for this home", "secrets", whole, reference=reference, **facts
            )

    def check_place(self, place: AllowedPlace, **facts: object) -> None:
        """Raise InvalidRequestError where no driver may be there. On this machine one may while no place is named."""
        is_default = place.launcher == LOCAL and not self.launchers
        if is_default or any(_is_same(place, one) for one in self.launchers):
            return
        line = place.to_json()
        raise self._refusal("drivers of this home may not be at this place", "launchers", line, **{**line, **facts})

    def check_spark_connection(self, conn_id: str, **facts: object) -> None:
        """Raise InvalidRequestError where no driver may be launched through this Spark connection."""
        if conn_id not in self.spark_connections:
            raise self._refusal(
                "this Spark connection is not allowed for this home",
                "spark_connections",
                conn_id,
                spark_conn_id=conn_id,
                **facts,
            )

    def check_store(self, uri: str, **facts: object) -> None:
        """Raise InvalidRequestError where no mirror and no snapshot of this home may be at this URI."""
        place = _place_of(uri)
        if place is None or not any(_is_below(place, _place_of(one)) for one in self.stores):
            raise self._refusal("this place is not allowed for this home", "stores", uri, place=uri, **facts)

    def check_file(self, path: str, **facts: object) -> None:
        """Raise InvalidRequestError where this file of this machine may not be sent to a driver elsewhere."""
        if not any(_is_below(os.path.realpath(path), os.path.realpath(local_folder(one))) for one in self.files):
            raise self._refusal(
                "this file of the controller's machine may not be sent to drivers of this home",
                "files",
                path,
                path=path,
                **facts,
            )

    def _refusal(self, message: str, name: str, line: object, **facts: object) -> InvalidRequestError:
        return InvalidRequestError(
            message,
            **facts,
            next_step=f"If you trust whoever named it, add {json.dumps(line)} to {name!r} in {self.where or _UNNAMED}.",
        )


def _is_same(place: AllowedPlace, one: AllowedPlace) -> bool:
    if (place.launcher, place.conn_id) != (one.launcher, one.conn_id):
        return False
    return _fits(dict(place.options), plain_options(one.options), can_lack=True)


def _fits(value: object, pattern: object, *, can_lack: bool = False) -> bool:
    """Whether a value is the allowed one; ``can_lack``: an object may lack a field whose pattern is ``*``."""
    if pattern == _ANY or value == pattern:
        return True
    if isinstance(value, Mapping) and isinstance(pattern, Mapping):
        names = {*value, *(name for name, one in pattern.items() if not (can_lack and one == _ANY))}
        return all(name in value and name in pattern and _fits(value[name], pattern[name]) for name in names)
    if isinstance(value, list | tuple) and isinstance(pattern, list | tuple):
        return len(value) == len(pattern) and all(map(_fits, value, pattern))
    if not (isinstance(value, str) and isinstance(pattern, str)):
        return False
    return re.fullmatch(_WITHIN.join(map(re.escape, pattern.split(_ANY))), value) is not None


def _place_of(uri: str) -> str | None:
    """A URI in one form, with the links of a folder followed; None for one that could leave what is above it."""
    if "://" not in uri or uri.startswith("file:"):
        path = uri if not uri.startswith("file:") else path_of_file_uri(uri)
        return os.path.realpath(local_folder(path))
    scheme, _, rest = uri.partition("://")
    return None if {".", ".."} & set(rest.split("/")) else f"{scheme}://{rest.rstrip('/')}"


def _is_below(place: str, top: str | None) -> bool:
    return top is not None and (place == top or place.startswith(f"{top.rstrip('/')}/"))


def _object(raw: object, where: str) -> Mapping[str, object]:
    if raw is None or raw == "":
        return {}
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError):
            raise _malformed(where, "it is no JSON") from None
    if not isinstance(raw, Mapping):
        raise _malformed(where, "it is no JSON object")
    return raw


def _texts(given: Mapping[str, object], name: str, where: str) -> tuple[str, ...]:
    found = given.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise _malformed(where, f"{name} is no list of texts")
    return tuple(found)


def _place(raw: object, where: str) -> AllowedPlace:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("launcher"), str):
        raise _malformed(where, "an entry of launchers names no launcher")
    unknown = sorted(str(name) for name in set(raw) - set(_PLACE_FIELDS))
    if unknown:
        raise _malformed(where, f"an entry of launchers has no field {unknown[0]!r}")
    conn_id, options = raw.get("conn_id") or "", raw.get("options") or {}
    if not isinstance(conn_id, str) or not isinstance(options, Mapping):
        raise _malformed(where, "conn_id of an entry of launchers is a text, and its options are an object")
    return AllowedPlace(raw["launcher"], conn_id, plain_options(options))


def _union(mine: tuple[_T, ...], theirs: tuple[_T, ...]) -> tuple[_T, ...]:
    return (*mine, *(one for one in theirs if one not in mine))


def _malformed(where: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "this is no list of what is allowed for a home",
        where=where or _UNNAMED,
        reason=reason,
        next_step=f"It has this form: {_FORM}.",
    )
