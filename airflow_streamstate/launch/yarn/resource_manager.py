"""YARN's ResourceManager and NodeManagers, by their REST interfaces."""

from __future__ import annotations

import email.utils
import json
import re
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_streamstate.errors import InvalidRequestError, UnavailableError

SITE = "yarn-site.xml"
ANSWER_SECONDS = 5.0
YOUNG_SECONDS = 20.0
"""So long after its start a ResourceManager may not list yet what runs."""

_ADDRESS = re.compile(r"(?:https?://)?(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}/?")
_VARIABLE = re.compile(r"\$\{([^}$]+)\}")


def read_site(folder: Path) -> dict[str, str]:
    """The properties of a folder's ``yarn-site.xml``, with those that it names put in.

    Raises:
        InvalidRequestError: there is none, or it is no such file.
    """
    path = folder / SITE
    try:
        root = ElementTree.fromstring(path.read_bytes())  # noqa: S314 - the administrator's own file
    except (OSError, ElementTree.ParseError) as error:
        raise InvalidRequestError(
            "the configuration of the YARN cluster cannot be read",
            path=str(path),
            reason=str(getattr(error, "strerror", None) or "it is no XML").lower(),
            next_step="Set HADOOP_CONF_DIR, or the launcher's option hadoop_conf_dir, to the folder with the cluster's"
            f" {SITE} and core-site.xml.",
        ) from None
    raw = {(one.findtext("name") or "").strip(): (one.findtext("value") or "").strip() for one in root.iter("property")}
    return {name: _VARIABLE.sub(lambda found: raw.get(found[1], found[0]), value) for name, value in raw.items()}


def addresses_in(site: Mapping[str, str]) -> tuple[str, ...]:
    """The URLs of the ResourceManagers of this configuration; () for none that it names."""
    is_secure = site.get("yarn.http.policy", "HTTP_ONLY") == "HTTPS_ONLY"
    scheme, port, kind = ("https", "8090", "webapp.https") if is_secure else ("http", "8088", "webapp")
    ids: Sequence[str] = ("",)
    if site.get("yarn.resourcemanager.ha.enabled", "false").lower() == "true":
        ids = [f".{one.strip()}" for one in site.get("yarn.resourcemanager.ha.rm-ids", "").split(",") if one.strip()]
    found = []
    for one in ids:
        host = site.get(f"yarn.resourcemanager.hostname{one}", "")
        address = site.get(f"yarn.resourcemanager.{kind}.address{one}") or (f"{host}:{port}" if host else "")
        if address:
            found.append(f"{scheme}://{address}")
    return tuple(found)


def need_addresses(texts: Sequence[str]) -> tuple[str, ...]:
    """The addresses as URLs.

    Raises:
        InvalidRequestError: one is no address.
    """
    for text in texts:
        if not _ADDRESS.fullmatch(text):
            raise InvalidRequestError(
                "this is no address of a ResourceManager's web interface",
                resource_manager=text,
                next_step="Give it as http://HOST:8088; several are separated by commas.",
            )
    return tuple((text if "://" in text else f"http://{text}").rstrip("/") for text in texts)


@dataclass(frozen=True)
class Answer:
    """What a server answered.

    Attributes:
        seconds: the server's own time, as a number of seconds since 1970; 0.0 if it does not say.
    """

    status: int
    body: bytes
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        """The JSON object in it; {} for anything else."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def ask(method: str, url: str, body: Mapping[str, object] | None = None) -> Answer:
    """One request to a server of the cluster; an answer with any status is one.

    Raises:
        UnavailableError: no answer.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json, text/plain", **({"Content-Type": "application/json"} if data else {})}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - http or https, see need_addresses
    try:
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:  # noqa: S310
                return Answer(reply.status, reply.read(), _time(reply.headers.get("Date")))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read(), _time(error.headers.get("Date")))
    except (OSError, ValueError) as error:
        raise UnavailableError("a server of the YARN cluster does not answer", url=url, reason=_words(error)) from None


class ResourceManager:
    """The one that is active, of one or several.

    Args:
        addresses: URLs; at least one.
        user: the name that an unsecured cluster takes on trust; "" for its default.
    """

    def __init__(self, addresses: Sequence[str], user: str = "") -> None:
        self.addresses = tuple(addresses)
        self._user = user
        self._active = ""

    @property
    def active(self) -> str:
        """The URL of the active one, asked for once.

        Raises:
            UnavailableError: none answers, or none is active.
        """
        self._active = self._active or self._find_active()[0]
        return self._active

    def age_seconds(self) -> float:
        """How long the active one has been up, by its own clock.

        Raises:
            UnavailableError: as ``active``.
        """
        _, info, seconds = self._find_active()
        return seconds - float(info.get("startedOn", 0)) / 1000

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path below ``/ws/v1/cluster/``; {} where nothing is.

        Raises:
            UnavailableError: no answer that could be used.
        """
        answer = ask("GET", self._url(path))
        if answer.status == 404:
            return {}
        if answer.status != 200:
            raise self._refused(answer)
        return answer.json

    def send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> None:
        """Tell it to do something.

        Raises:
            InvalidRequestError: it does not allow it.
            UnavailableError: no answer that could be used.
        """
        answer = ask(method, self._url(path), body)
        if answer.status in (401, 403):
            raise InvalidRequestError(
                "the ResourceManager does not allow this",
                resource_manager=self.active,
                status=answer.status,
                next_step="Let the user of the applications do it: option user, or the queue's administrators.",
            )
        if answer.status >= 300 and answer.status not in (400, 404):
            raise self._refused(answer)

    def applications(self, tag: str) -> list[dict[str, Any]]:
        """Every application with a tag, ended ones too, oldest first.

        Raises:
            UnavailableError: as ``get``.
        """
        listed = (self.get(f"apps?applicationTags={urllib.parse.quote(tag)}").get("apps") or {}).get("app") or []
        return sorted(listed, key=lambda app: [int(part) for part in re.findall(r"[0-9]+", str(app.get("id")))])

    def last_attempt(self, application: str) -> dict[str, Any]:
        """The last attempt of an application; {} for none.

        Raises:
            UnavailableError: as ``get``.
        """
        attempts = (self.get(f"apps/{application}/appattempts").get("appAttempts") or {}).get("appAttempt") or []
        return attempts[-1] if attempts else {}

    def _find_active(self) -> tuple[str, dict[str, Any], float]:
        reasons = []
        for address in self.addresses:
            try:
                answer = ask("GET", f"{address}/ws/v1/cluster/info{self._user_part('?')}")
            except UnavailableError as error:
                reasons.append(f"{address}: {error.context['reason']}")
                continue
            info = answer.json.get("clusterInfo") or {}
            if answer.status == 200 and info.get("haState", "ACTIVE") == "ACTIVE" and info.get("state") == "STARTED":
                return address, info, answer.seconds
            words = f"it is {info['haState'].lower()}" if "haState" in info else _status_words(answer.status)
            reasons.append(f"{address}: {words}")
        raise UnavailableError(
            "no ResourceManager answers",
            reason="; ".join(reasons),
            next_step="See that one is up and active and that its web address is right, then do the same again.",
        )

    def _url(self, path: str) -> str:
        return f"{self.active}/ws/v1/cluster/{path}{self._user_part('&' if '?' in path else '?')}"

    def _user_part(self, sign: str) -> str:
        return f"{sign}user.name={urllib.parse.quote(self._user)}" if self._user else ""

    def _refused(self, answer: Answer) -> UnavailableError:
        return UnavailableError(
            "the ResourceManager cannot be asked", resource_manager=self.active, reason=_status_words(answer.status)
        )


def _status_words(status: int) -> str:
    if status == 401:
        return "it wants Kerberos on its web interface, which this launcher does not speak"
    return f"it answers with status {status}"


def _time(date: str | None) -> float:
    try:
        return email.utils.parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return 0.0


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no answer within {ANSWER_SECONDS:g} s"
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__).lower()
