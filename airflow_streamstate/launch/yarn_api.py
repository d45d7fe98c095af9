"""YARN's REST interfaces, the logs of its nodes, and the options of the launcher."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.interface import read_options
from airflow_streamstate.launch.rest import ANSWER_BYTES, ANSWER_SECONDS, RestAnswer, Until, ask, shown

if TYPE_CHECKING:
    from typing_extensions import Self


SITE = "yarn-site.xml"
CALL_SECONDS = 25.0
"""For all answers of one question about a driver."""
SETTLE_SECONDS = 3.0
"""A NodeManager reports a container as done a quarter of a second before it sends the last SIGKILL."""
ENDED = ("FINISHED", "FAILED", "KILLED")
"""States of an application that has ended."""
LISTING_BYTES = 32 << 20
"""Of an answer that grows with the cluster."""
YOUNG_SECONDS = 20.0
"""Until this long after its start a ResourceManager may not list what runs."""

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
        InvalidRequestError: it does not exist, or is not such a file.
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
    """The URLs of the ResourceManagers of this configuration; () if it names none."""
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
        """Ask it to do something.

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
        """The last attempt of an application; {} without one.

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

    def ask_node(self, url: str, at_most: int = ANSWER_BYTES) -> RestAnswer:
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
    ) -> RestAnswer:
        seconds = self._until.left(ANSWER_SECONDS)
        return ask(method, url, body, seconds=seconds, at_most=at_most, refuses=refuses)

    def _application(self, raw: object, wanted: str = "") -> dict[str, Any]:
        """The application with an id and a state that YARN has."""
        is_one = isinstance(raw, dict) and is_application(raw.get("id")) and text(raw, "state") in _STATES
        if isinstance(raw, dict) and is_one and wanted in ("", raw["id"]):
            return raw
        raise self._odd("an application")

    def _odd(self, what: str) -> UnavailableError:
        reason = f"its answer is not what a ResourceManager reports of {what}"
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

    def _refused(self, answer: RestAnswer) -> UnavailableError:
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
        """Whether the node proves that the container has ended: it was asked to kill it, and has.

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
        """The last bytes of a log; "" if it is empty, or where the node does not give it."""
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


# A container's log in the file in which YARN keeps the logs of one node after the end (TFile, not compressed).
#
# Hadoop's client for it is not among the jars that Spark brings. The layout is that of ``AggregatedLogFormat``: a
# record per container, its key the container's id, its value in chunks; in it the logs, each as name, length and
# bytes.

_BIG = (4, 5, 6, 7, 8)


def log_in(aggregated: bytes, container: str, name: str) -> bytes:
    """The log of this name of a container; b"" where the file has none that can be read."""
    key = _text(container)
    at = aggregated.find(key)
    while at >= 0:
        try:
            found = _logs(_value(aggregated, at + len(key)))
        except (IndexError, ValueError):
            found = {}
        if name in found:
            return found[name]
        at = aggregated.find(key, at + 1)
    return b""


def _text(text: str) -> bytes:
    body = text.encode()
    return len(body).to_bytes(2, "big") + body


def _value(data: bytes, at: int) -> bytes:
    """The value that starts there: chunks, each after its length, which is negative for all but the last."""
    chunks = []
    while True:
        size, at = _number(data, at)
        chunk = data[at : at + abs(size)]
        if len(chunk) != abs(size):
            raise ValueError(size)
        chunks.append(chunk)
        at += abs(size)
        if size >= 0:
            return b"".join(chunks)


def _logs(value: bytes) -> dict[str, bytes]:
    found, at = {}, 0
    while at < len(value):
        name, at = _read_text(value, at)
        size, at = _read_text(value, at)
        found[name] = value[at : at + int(size)]
        at += int(size)
    return found


def _read_text(value: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + int.from_bytes(value[at : at + 2], "big")
    return value[at + 2 : end].decode(), end


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number as TFile writes it, and where it ends."""
    first = data[at] - 256 if data[at] > 127 else data[at]
    if first >= -32:
        return first, at + 1
    kind = (first + 128) // 8
    if kind == 0:
        size = _BIG[first + 128] if first + 128 < len(_BIG) else 0
        return int.from_bytes(data[at + 1 : at + 1 + size], "big", signed=True), at + 1 + size
    size, base = (1, 52) if kind >= 7 else (2, 88) if kind >= 3 else (3, 112)
    return ((first + base) << (8 * size)) | int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size


# The options of the YARN launcher.

TAGS = "spark.yarn.tags"
MUST = ("spark.yarn.maxAppAttempts", "spark.yarn.submit.waitAppCompletion")
"""Settings that the launcher's promises rest on: restarts are ours, and a launch returns."""
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_PREFIX = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True, kw_only=True)
class YarnOptions:
    """Where drivers run, and as what; none of it is secret.

    Attributes:
        hadoop_conf_dir: the folder with the cluster's yarn-site.xml and core-site.xml; by default HADOOP_CONF_DIR or
            YARN_CONF_DIR of the caller.
        resource_manager: addresses of the ResourceManagers' web interfaces, separated by commas; by default those of
            yarn-site.xml.
        queue: of the applications; "" for Spark's default.
        user: the name on a cluster without Kerberos; "" for the caller's.
        keytab, principal: for a cluster with Kerberos: the path of a keytab on every machine that launches, and its
            name.
        python: the Python on the nodes; "" for the cluster's choice.
        python_env: an archive (conda-pack, venv-pack) of the Python environment: a URI, or the path of a file here.
        spark_yarn_jars: where the nodes have Spark's jars (spark.yarn.jars), which are uploaded otherwise.
        staging_dir: where files of applications are put (spark.yarn.stagingDir); "" for the user's home on the
            cluster's file system.
        tag_prefix: what the tag of an application starts with.
    """

    hadoop_conf_dir: str = ""
    resource_manager: str = ""
    queue: str = ""
    user: str = ""
    keytab: str = ""
    principal: str = ""
    python: str = ""
    python_env: str = ""
    spark_yarn_jars: str = ""
    staging_dir: str = ""
    tag_prefix: str = "streamstate"

    @classmethod
    def from_options(cls, raw: Mapping[str, object], environ: Mapping[str, str]) -> Self:
        """The options, with what the environment sets where they set nothing.

        Raises:
            InvalidRequestError: one has no such name, or an impossible value.
        """
        values = read_options("yarn", raw, [one.name for one in fields(cls)])
        if isinstance(values.get("resource_manager"), list | tuple):
            values["resource_manager"] = ",".join(str(one) for one in values["resource_manager"])  # type: ignore[attr-defined]
        for name, value in values.items():
            if not isinstance(value, str) or value != value.strip() or "\n" in value:
                raise InvalidRequestError(
                    "this option of the launcher yarn is a text in one line",
                    option=name,
                    next_step=f"Give it as {name}=TEXT, without blanks around it.",
                )
        given = {name: str(value) for name, value in values.items()}
        given["hadoop_conf_dir"] = (
            given.get("hadoop_conf_dir") or environ.get("HADOOP_CONF_DIR") or environ.get("YARN_CONF_DIR") or ""
        )
        options = cls(**given)
        options._check()
        return options

    def need_conf_dir(self) -> None:
        """Refuse a launch without the cluster's configuration, which spark-submit reads.

        Raises:
            InvalidRequestError: there is no such configuration.
        """
        if not (self.hadoop_conf_dir and (Path(self.hadoop_conf_dir) / SITE).is_file()):
            raise InvalidRequestError(
                "spark-submit needs the configuration of the YARN cluster, which is not on this machine",
                hadoop_conf_dir=self.hadoop_conf_dir or "not set",
                next_step=f"Set HADOOP_CONF_DIR to the folder with the cluster's {SITE} and core-site.xml, or give it"
                " as --launcher-option hadoop_conf_dir=FOLDER.",
            )

    def need_files(self, placed_later: str = "") -> None:
        """Refuse a launch from a machine that lacks a file which an option names; other calls need none.

        Args:
            placed_later: the folder whose files need not exist yet; "" without one.

        Raises:
            InvalidRequestError: one is not there.
        """
        for name, path in self._local_files():
            is_later = bool(placed_later) and path.startswith(f"{placed_later}/")
            if not is_later and not Path(path).is_file():
                raise InvalidRequestError(
                    "a file that an option of the launcher yarn names is not there",
                    option=name,
                    path=path,
                    next_step="Correct the path; a keytab must be there on every machine that launches this stream.",
                )

    def addresses(self) -> tuple[str, ...]:
        """URLs of the ResourceManagers.

        Raises:
            InvalidRequestError: none is known.
        """
        if self.resource_manager:
            return need_addresses([one.strip() for one in self.resource_manager.split(",") if one.strip()])
        self.need_conf_dir()
        found = addresses_in(read_site(Path(self.hadoop_conf_dir)))
        if not found:
            raise InvalidRequestError(
                f"the cluster's {SITE} does not state where the ResourceManager is",
                hadoop_conf_dir=self.hadoop_conf_dir,
                next_step="Give it as --launcher-option resource_manager=http://HOST:8088.",
            )
        return found

    def conf(self, tag: str, name: str) -> dict[str, str]:
        """Spark's configuration of an application with this tag and name."""
        python = self.python or ("env/bin/python" if self.python_env else "")
        values = {
            TAGS: tag,
            "spark.app.name": name,
            "spark.yarn.maxAppAttempts": "1",
            "spark.yarn.submit.waitAppCompletion": "false",
            # A driver that waits for its turn has no session yet; YARN itself gives it ten minutes.
            "spark.yarn.am.waitTime": "600s",
            "spark.yarn.queue": self.queue,
            "spark.kerberos.keytab": self.keytab,
            "spark.kerberos.principal": self.principal,
            "spark.yarn.jars": self.spark_yarn_jars,
            "spark.yarn.stagingDir": self.staging_dir,
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": python,
            "spark.executorEnv.PYSPARK_PYTHON": python,
        }
        return {key: value for key, value in values.items() if value}

    def _local_files(self) -> list[tuple[str, str]]:
        """The options that name a file of this machine, and its path."""
        named = ((name, str(getattr(self, name))) for name in ("python_env", "keytab"))
        return [(name, path) for name, path in named if path and not _SCHEME.match(path)]

    def _check(self) -> None:
        if bool(self.keytab) != bool(self.principal):
            raise InvalidRequestError(
                "a keytab needs its principal, and a principal its keytab",
                next_step="Give both as options, or neither.",
            )
        if not _PREFIX.fullmatch(self.tag_prefix):
            raise InvalidRequestError(
                "this prefix of tags is impossible",
                tag_prefix=self.tag_prefix,
                next_step="Use lower-case letters, digits and dashes, 31 at most.",
            )
        if ("keytab", self.keytab) in self._local_files() and not Path(self.keytab).is_absolute():
            raise InvalidRequestError(
                "the path of this option must be absolute: later drivers are launched from other folders",
                option="keytab",
                path=self.keytab,
                next_step="Give the whole path, or a URI that every machine reads.",
            )
        if self.resource_manager:
            self.addresses()
