"""YARN's ResourceManager and NodeManagers, by their REST interfaces."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.rest import ANSWER_BYTES, ANSWER_SECONDS, Answer, Until, ask, shown

SITE = "yarn-site.xml"
CALL_SECONDS = 25.0
"""For all answers of one question about a driver."""
SETTLE_SECONDS = 3.0
"""A NodeManager tells a container as done a quarter of a second before it sends the last SIGKILL."""
ENDED = ("FINISHED", "FAILED", "KILLED")
"""States of an application that has ended."""
LISTING_BYTES = 32 << 20
"""Of an answer that grows with the cluster."""
YOUNG_SECONDS = 20.0
"""So long after its start a ResourceManager may not list yet what runs."""

_ADDRESS = re.compile(r"(?:https?://)?(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}/?")
APPLICATION = re.compile(r"application_[0-9]{1,20}_[0-9]{1,10}")
_STATES = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", *ENDED})
_NODE = re.compile(r"[A-Za-z0-9_.\[\]:-]{1,260}:[0-9]{1,5}")
_CONTAINER_LOGS = re.compile(
    r"(?P<node>https?://[A-Za-z0-9_.\[\]:-]+)/node/containerlogs/(?P<container>container_[A-Za-z0-9_]{1,100})/"
)
_CONTENTS = re.compile(r"^LogContents:\n(.*?)\n?(?:^End of LogType:[^\n]*\n?)", re.MULTILINE | re.DOTALL)
_HEAD_AND_FOOT_BYTES = 1 << 16
_LOOPBACK = re.compile(r"https?://(?:localhost|127\.[0-9.]+|\[::1\])(?::|/|$)")
_LARGEST = 1 << 60
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


class ResourceManager:
    """The one that is active, of one or several.

    Args:
        addresses: URLs from the caller's own configuration; at least one.
        user: the name that an unsecured cluster takes on trust; "" for its default.
        until: when all answers have to be there.
    """

    def __init__(self, addresses: Sequence[str], user: str = "", until: Until | None = None) -> None:
        self.addresses = tuple(addresses)
        self._user = user
        self._until = until or Until(SYSTEM_CLOCK, CALL_SECONDS)
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
        return seconds - number(info, "startedOn") / 1000

    def get(self, path: str, *, at_most: int = ANSWER_BYTES) -> dict[str, Any]:
        """The JSON object at a path below ``/ws/v1/cluster/``; {} where nothing is.

        Raises:
            UnavailableError: no answer that could be used.
        """
        answer = self._ask("GET", self._url(path), at_most=at_most)
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
        answer = self._ask(method, self._url(path), body)
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
        listed = objects_in(self.get(f"apps?applicationTags={urllib.parse.quote(tag)}"), "apps", "app")
        found = [self._application(app) for app in listed]
        return sorted(found, key=lambda app: [int(part) for part in re.findall(r"[0-9]+", app["id"])])

    def application(self, application: str) -> dict[str, Any] | None:
        """The application of this id; None where it does not know one.

        Raises:
            UnavailableError: as ``get``.
        """
        found = self.get(f"apps/{application}").get("app")
        return self._application(found, application) if found else None

    def last_attempt(self, application: str) -> dict[str, Any]:
        """The last attempt of an application; {} for none.

        Raises:
            UnavailableError: as ``get``.
        """
        answer = self.get(f"apps/{application}/appattempts")
        attempts = objects_in(answer, "appAttempts", "appAttempt")
        # None may mean that no container was ever started, so that an odd answer must not look like it.
        listed = answer.get("appAttempts", answer)
        if (listed and (not attempts or not isinstance(attempts[-1].get("containerId", ""), str))) or not answer:
            raise self._odd("an application's attempts")
        return attempts[-1] if attempts else {}

    def container_on_node(self, app: Mapping[str, Any]) -> ContainerOnNode | None:
        """Where the driver's container is or was, on a node that this cluster lists; None if that is not known.

        Raises:
            UnavailableError: as ``get``.
        """
        named = _CONTAINER_LOGS.match(text(app, "amContainerLogs"))
        node = text(self.last_attempt(app["id"]), "nodeId")
        if named is None or not _NODE.fullmatch(node):
            return None
        listed = self.get(f"nodes/{urllib.parse.quote(node, safe=':')}").get("node")
        address = text(listed if isinstance(listed, dict) else {}, "nodeHTTPAddress")
        scheme, _, host = named["node"].partition("://")
        return ContainerOnNode(self, f"{scheme}://{host}", node, named["container"]) if host == address else None

    def ask_node(self, url: str, at_most: int = ANSWER_BYTES) -> Answer:
        """The answer of a node that this cluster lists.

        Raises:
            UnavailableError: no answer, or the address of the node is one that no other machine has.
        """
        return self._ask("GET", url, at_most=at_most, refuses=self._is_no_node)

    def _is_no_node(self, address: str) -> bool:
        """Whether this is an address of the machine that asks, or of a cloud's metadata: never that of a node, unless
        the whole cluster is on this machine.
        """
        ip = ipaddress.ip_address(address.partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        is_here = _LOOPBACK.match(self.active) is not None
        return ip.is_link_local or ip.is_unspecified or ip.is_multicast or (ip.is_loopback and not is_here)

    def _ask(
        self,
        method: str,
        url: str,
        body: Mapping[str, object] | None = None,
        *,
        at_most: int = ANSWER_BYTES,
        refuses: Callable[[str], bool] | None = None,
    ) -> Answer:
        seconds = self._until.left(ANSWER_SECONDS)
        return ask(method, url, body, seconds=seconds, at_most=at_most, refuses=refuses)

    def _application(self, raw: object, wanted: str = "") -> dict[str, Any]:
        """The application with an id and a state that YARN has."""
        is_one = isinstance(raw, dict) and is_application(raw.get("id")) and text(raw, "state") in _STATES
        if isinstance(raw, dict) and is_one and wanted in ("", raw["id"]):
            return raw
        raise self._odd("an application")

    def _odd(self, what: str) -> UnavailableError:
        reason = f"its answer is not what a ResourceManager says of {what}"
        return UnavailableError("the ResourceManager cannot be asked", resource_manager=self.active, reason=reason)

    def _find_active(self) -> tuple[str, dict[str, Any], float]:
        reasons = []
        for address in self.addresses:
            try:
                answer = self._ask("GET", f"{address}/ws/v1/cluster/info{self._user_part('?')}")
            except UnavailableError as error:
                reasons.append(f"{address}: {error.context['reason']}")
                continue
            info = answer.json.get("clusterInfo")
            info = info if isinstance(info, dict) else {}
            if answer.status == 200 and info.get("haState", "ACTIVE") == "ACTIVE" and info.get("state") == "STARTED":
                return address, info, answer.seconds
            state = shown(text(info, "haState")).lower()
            words = f"it is {state}" if state else _status_words(answer.status)
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


@dataclass(frozen=True)
class ContainerOnNode:
    """A container, on a node of the cluster.

    Attributes:
        node: the URL of its web interface.
        node_id: its name in the cluster.
    """

    manager: ResourceManager
    node: str
    node_id: str
    container: str

    def is_over(self, app: Mapping[str, Any]) -> bool:
        """Whether the node proves that the container is over: it has been told to kill it, and has.

        A NodeManager that was started after the application knows nothing of its containers.
        """
        try:
            node = self.manager.ask_node(f"{self.node}/ws/v1/node/info")
            container = self.manager.ask_node(f"{self.node}/ws/v1/node/containers/{self.container}")
        except UnavailableError:
            return False
        info, told = node.json.get("nodeInfo"), container.json.get("container")
        started = number(info if isinstance(info, dict) else {}, "nmStartupTime")
        if node.status != 200 or not 0 < started < number(app, "startedTime"):
            return False
        is_done = container.status == 404 or (isinstance(told, dict) and told.get("state") in ("DONE", "COMPLETE"))
        return is_done and node.seconds - number(app, "finishedTime") / 1000 > SETTLE_SECONDS

    def log(self, name: str, count: int) -> str:
        """The last bytes of a log; "" for none, or where the node does not give it."""
        url = f"{self.node}/ws/v1/node/containerlogs/{self.container}/{name}?size={-count}"
        try:
            answer = self.manager.ask_node(url, count + _HEAD_AND_FOOT_BYTES)
        except UnavailableError:
            return ""
        if answer.status != 200:
            return ""
        return "".join(match[1] for match in _CONTENTS.finditer(answer.body.decode("utf-8", "replace")))


def is_application(name: object) -> bool:
    """Whether this is the id of an application."""
    return isinstance(name, str) and APPLICATION.fullmatch(name) is not None


def objects_in(raw: Mapping[str, Any], *names: str) -> list[dict[str, Any]]:
    """The objects in a list of an answer, by the names of what holds it; [] for anything else."""
    found: Any = raw
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def text(raw: Mapping[str, Any], name: str) -> str:
    """A text of an answer; "" for anything else."""
    found = raw.get(name)
    return found if isinstance(found, str) else ""


def number(raw: Mapping[str, Any], name: str) -> float:
    """A number of an answer; 0.0 for anything else."""
    found = raw.get(name)
    return float(found) if isinstance(found, int | float) and abs(found) < _LARGEST else 0.0
