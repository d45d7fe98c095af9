"""The client of a Kubernetes cluster and the options of the launcher; the only module that imports ``kubernetes``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import kubernetes
import urllib3

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.interface import option_text, read_options
from airflow_streamstate.launch.rest import TooSlowError, shown, within
from airflow_streamstate.store.open import is_readable_on_its_way

if TYPE_CHECKING:
    from typing_extensions import Self


CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
CALL_SECONDS = 20.0
"""For one whole answer."""
MOST_BYTES = 32 << 20
"""Of one answer: a list of pods may be long."""
_MOST_WORDS = 1 << 20
_MOST_SHOWN = 500
_MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The cluster answered with this status, or not at all (0)."""

    def __init__(self, status: int, reason: str, *, was_sent: bool) -> None:
        self.status = status
        self.reason = reason
        self.was_sent = was_sent
        super().__init__(reason)

    @property
    def words(self) -> str:
        """One lower-case, human-readable sentence."""
        known = {
            0: "the cluster does not answer",
            401: "the cluster does not accept these credentials: they may have expired",
            403: "the cluster forbids it",
            404: "the cluster does not know it",
            429: "the cluster is asked too often",
        }
        fact = known.get(self.status, f"the cluster answers with HTTP status {self.status}")
        return f"{fact} ({self.reason})" if self.reason else fact


class Cluster:
    """One API server, asked with these credentials.

    Attributes:
        is_refused: it has refused the credentials.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.is_refused = False
        # A client of Airflow's has been made already, so its pools are set, too: three tries of a silent server
        # take three times as long, and a create that is tried again would meet itself.
        client.rest_client.pool_manager.connection_pool_kw["retries"] = urllib3.Retry(0, redirect=0)

    @property
    def url(self) -> str:
        return str(self._client.configuration.host)

    def call(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """The answer's JSON.

        Raises:
            ApiError: any other answer than success.
        """
        try:
            found = within(CALL_SECONDS, lambda: self._answer(method, path, body, query))
        except TooSlowError as error:
            raise ApiError(0, str(error), was_sent=True) from None
        return found if isinstance(found, dict) else {}

    def _answer(self, method: str, path: str, body: object, query: Mapping[str, object] | None) -> object:
        answer = self.open(method, path, body, query)
        try:
            content = answer.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                answer.close()
                raise ApiError(0, f"its answer has more than {MOST_BYTES} bytes", was_sent=True)
            return json.loads(content or b"{}")
        except (ValueError, RecursionError, urllib3.exceptions.HTTPError) as error:
            raise ApiError(0, f"its answer is cut short: {type(error).__name__}", was_sent=True) from None
        finally:
            answer.release_conn()

    def open(self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None) -> Any:
        """The answer of urllib3, its body not yet read; raises as ``call``."""
        content = _MERGE_PATCH if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json, */*", "Content-Type": content, **self._client.default_headers}
        words = f"?{urlencode(query)}" if query else ""
        try:
            self._client.update_params_for_auth(headers, [], ["BearerToken"])
            if is_readable_on_its_way(self.url) and any(name.lower() == "authorization" for name in headers):
                raise ApiError(0, "a token would go over http, where everybody reads it", was_sent=False)
            answer = self._client.rest_client.pool_manager.request(
                method,
                f"{self.url}{path}{words}",
                headers=headers,
                body=None if body is None else json.dumps(body).encode(),
                preload_content=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
            )
        except urllib3.exceptions.HTTPError as error:
            cause = getattr(error, "reason", None) or error
            refused = isinstance(cause, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError)
            raise ApiError(0, type(cause).__name__, was_sent=not refused) from None
        except (OSError, kubernetes.config.ConfigException) as error:
            raise ApiError(0, type(error).__name__, was_sent=False) from None
        if not 200 <= answer.status <= 299:
            self.is_refused = self.is_refused or answer.status == 401
            raise ApiError(answer.status, _message(answer), was_sent=True)
        return answer


def connected(kubeconfig: str, context: str) -> Cluster:
    """The cluster of a kubeconfig, or else the one whose pod this is.

    Raises:
        InvalidRequestError: there is neither, or the file is not what it should be.
    """
    configuration = kubernetes.client.Configuration()
    path = Path(kubeconfig).expanduser() if kubeconfig else None
    try:
        if path is not None and not path.is_file():
            raise kubernetes.config.ConfigException("no such file")
        try:
            kubernetes.config.load_kube_config(
                config_file=str(path) if path else None,
                context=context or None,
                client_configuration=configuration,
                persist_config=False,
            )
        except kubernetes.config.ConfigException:
            if path is not None or context:
                raise
            kubernetes.config.load_incluster_config(client_configuration=configuration)
    except Exception as error:  # the client raises whatever YAML, base64 and the disk do
        raise InvalidRequestError(
            "no cluster is known here",
            kubeconfig=kubeconfig or "~/.kube/config",
            **({"context": context} if context else {}),
            reason=str(error).splitlines()[0][:200].lower(),
            next_step="Check it by `kubectl config get-contexts`, or name one: `--launcher-option kubeconfig=FILE`.",
        ) from None
    configuration.retries = urllib3.Retry(0, redirect=0)
    return Cluster(kubernetes.client.ApiClient(configuration))


def refusal(error: ApiError, what: str, **facts: object) -> InvalidRequestError | UnavailableError:
    """The error of ours for a request whose refusal changed nothing."""
    if error.status in (400, 401, 403, 404, 422):
        step = {
            401: "Renew the credentials: `kubectl auth whoami` shows which are used.",
            403: "Give the right that the reason names; docs/how-to/kubernetes.md has a Role with all of them.",
            404: "Check cluster and namespace: `kubectl get namespaces`.",
        }.get(error.status, "Correct what the reason names.")
        return InvalidRequestError(what, reason=error.words, **facts, next_step=step)
    return UnavailableError(
        what, reason=error.words, **facts, next_step="Try again; `kubectl get --raw /readyz` asks it."
    )


def _message(answer: Any) -> str:
    """The answer's own message: it names object and reason, and never the data of a Secret that was sent."""
    try:
        found = json.loads(answer.read(_MOST_WORDS) or b"")
        return shown(found.get("message") or answer.reason, _MOST_SHOWN)
    except (ValueError, RecursionError, AttributeError, urllib3.exceptions.HTTPError):
        return shown(answer.reason or "", _MOST_SHOWN)


# The options of the Kubernetes launcher: which cluster, which image, and how the pod looks. They hold no secret.

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|e[0-9]+)?")
_IMAGE = re.compile(r"[^\s]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PULL = ("Always", "IfNotPresent", "Never")
_MOST_CHARACTERS, _MOST_DEPTH = 64 * 1024, 64
"""Of a pod template."""
_VOLUME_KINDS = ("host", "claim", "secret", "config-map", "empty")


@dataclass(frozen=True)
class Volume:
    """One folder of the driver's container: ``KIND:NAME:/FOLDER[:ro]``."""

    kind: str
    name: str
    folder: str
    read_only: bool


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """Which cluster, and how the driver's pod looks; docs/reference/kubernetes.md has each field.

    Attributes:
        image: of the driver, with Java, Spark and Python.
        namespace, service_account: which must be there.
        kubeconfig, context: how the cluster is reached outside of Airflow; "" for the usual places.
        cpu, memory: requested; ``cpu_limit`` and ``memory_limit``: what it may use at most.
        env_from_secrets: names of Secrets, or variables with ``secret/key``, by which the pod gets variables.
        volumes: as ``Volume``.
        pod_template: YAML of a Pod; merged.
        python: of the image.
        keep_pods: how many ended pods of a stream stay.
        grace_seconds: what a node that is drained gives the driver.
    """

    image: str = ""
    namespace: str = "default"
    service_account: str = "default"
    kubeconfig: str = ""
    context: str = ""
    cpu: str = ""
    memory: str = ""
    cpu_limit: str = ""
    memory_limit: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, object], ...] = ()
    env_from_secrets: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_template: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    image_pull_policy: str = ""
    priority_class: str = ""
    python: str = "python3"
    keep_pods: int = 2
    grace_seconds: int = 60

    @classmethod
    def from_options(cls, raw: Mapping[str, object]) -> Self:
        """The options of plain JSON, whose values may be texts of a command line.

        Raises:
            InvalidRequestError: a name or a value that they do not have.
        """
        given = read_options("kubernetes", raw, [item.name for item in fields(cls)])
        return cls(**{name: _READERS.get(name, _text)(name, value) for name, value in given.items()})

    def template(self) -> dict[str, Any]:
        """The pod template as an object; {} without one.

        Raises:
            InvalidRequestError: it is no YAML of a pod.
        """
        if not self.pod_template:
            return {}
        return _pod_of(self.pod_template)


def _pod_of(text: str) -> dict[str, Any]:
    import yaml

    try:
        _check_bounds(text)
        found = yaml.safe_load(text)
    except ValueError:
        raise _unbounded("it has a number or a date that is none") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InvalidRequestError(
            "the pod template is no YAML",
            line=mark.line + 1 if mark else "unknown",
            next_step="Correct it: `kubectl apply --dry-run=client -f FILE` names the fault.",
        ) from None
    try:
        json.dumps(found)
    except (TypeError, ValueError):
        raise InvalidRequestError(
            "the pod template has a value that JSON does not know, as a date without quotes",
            next_step="Put it into quotes.",
        ) from None
    if not isinstance(found, dict) or found.get("kind", "Pod") != "Pod" or not ({"spec", "metadata"} & set(found)):
        raise InvalidRequestError(
            "the pod template is not the YAML of one pod",
            next_step="Give an object with `kind: Pod` and a `spec`.",
        )
    for name in ("metadata", "spec"):
        if not isinstance(found.get(name, {}), dict):
            raise InvalidRequestError(
                f"the {name} of the pod template is no object", next_step="Indent what belongs to it."
            )
    return found


def _check_bounds(text: str) -> None:
    """Raise InvalidRequestError for a text that is larger than it looks, or takes long to read; also YAMLError."""
    import yaml

    if len(text) > _MOST_CHARACTERS:
        raise _unbounded(f"it has more than {_MOST_CHARACTERS:,} characters")
    depth = 0
    for token in yaml.scan(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        name = type(token).__name__
        depth += ("Start" in name) - ("End" in name)
        if depth > _MOST_DEPTH:
            raise _unbounded(f"it is nested more than {_MOST_DEPTH} deep")
        if isinstance(token, yaml.AliasToken):
            # It costs a few characters, and can take any size once it is written as JSON.
            raise _unbounded("it has aliases (*name)")


def _unbounded(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "the pod template is no plain YAML of a pod",
        reason=reason,
        next_step="Write each value out, as `kubectl get pod -o yaml` does.",
    )


def _wrong(name: str, what: str, value: object = None) -> InvalidRequestError:
    return InvalidRequestError(
        "this option of the Kubernetes launcher has no such value",
        option=name,
        **({} if value is None else {"value": value}),
        next_step=f"Give {what}.",
    )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise _wrong(name, "a text of one line")
    return value.strip()


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str, object], str]:
    def read(name: str, value: object) -> str:
        text = _text(name, value)
        if text and not pattern.fullmatch(text):
            raise _wrong(name, what, text)
        return text

    return read


def _count(most: int, least: int = 0) -> Callable[[str, object], int]:
    def read(name: str, value: object) -> int:
        text = str(value).strip()
        if not re.fullmatch(r"[0-9]{1,6}", text) or not least <= int(text) <= most:
            raise _wrong(name, f"a whole number from {least} to {most}", value)
        return int(text)

    return read


def _refuse_half_json(name: str, value: object, what: str) -> None:
    """JSON was read before; a text that looks like it is none."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        raise _wrong(name, what)


def _pairs(name: str, value: object) -> dict[str, str]:
    what = "an object of texts, or KEY=VALUE,KEY=VALUE"
    _refuse_half_json(name, value, what)
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not all("=" in part for part in parts):
            raise _wrong(name, what, value)
        value = dict(part.split("=", 1) for part in parts)
    if not isinstance(value, Mapping):
        raise _wrong(name, what)
    found = {str(key): option_text(text) for key, text in value.items()}
    if not all(isinstance(text, str) for text in found.values()):
        raise _wrong(name, what)
    return {key: str(text) for key, text in found.items()}


def _names(name: str, value: object) -> tuple[str, ...]:
    what = "names, with commas between them"
    _refuse_half_json(name, value, what)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(
        isinstance(item, str) and _DNS_NAME.fullmatch(item) for item in value
    ):
        raise _wrong(name, what)
    return tuple(value)


def _tolerations(name: str, value: object) -> tuple[Mapping[str, object], ...]:
    what = 'a list of objects as in a pod, for example [{"key": "spark", "operator": "Exists"}]'
    _refuse_half_json(name, value, what)
    if not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) for item in value):
        raise _wrong(name, what)
    return tuple(dict(item) for item in value)


def _env_from_secrets(name: str, value: object) -> dict[str, str]:
    """Variable to ``secret/key``; the name of a Secret to "" where all its keys become variables."""
    what = "names of Secrets, or VARIABLE=secret/key, with commas between them"
    _refuse_half_json(name, value, what)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple):
        value = {key: text for key, _, text in (str(part).partition("=") for part in value)}
    if not isinstance(value, Mapping):
        raise _wrong(name, what)
    found = {str(key): str(text) for key, text in value.items()}
    for key, text in found.items():
        secret, _, entry = text.partition("/")
        is_right = (
            _VARIABLE.fullmatch(key) and _DNS_NAME.fullmatch(secret) and entry if text else _DNS_NAME.fullmatch(key)
        )
        if not is_right:
            raise _wrong(name, what, f"{key}={text}" if text else key)
    return found


def _volumes(name: str, value: object) -> tuple[Volume, ...]:
    what = f"KIND:NAME:/FOLDER or KIND:NAME:/FOLDER:ro, KIND one of {', '.join(_VOLUME_KINDS)}"
    _refuse_half_json(name, value, what)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple):
        raise _wrong(name, what)
    found = []
    for item in value:
        parts = str(item).split(":")
        is_right = len(parts) in (3, 4) and parts[0] in _VOLUME_KINDS and parts[2].startswith("/")
        if not is_right or parts[3:] not in ([], ["ro"]) or (parts[0] == "host" and not parts[1].startswith("/")):
            raise _wrong(name, what, item)
        found.append(Volume(parts[0], parts[1], parts[2], read_only=len(parts) == 4))
    return tuple(found)


def _pull_policy(name: str, value: object) -> str:
    text = _text(name, value)
    if text not in ("", *_PULL):
        raise _wrong(name, f"one of {', '.join(_PULL)}", text)
    return text


def _template(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value)  # JSON is YAML
    if not isinstance(value, str) or not value.strip():
        raise _wrong(name, "the YAML of a pod")
    if "\n" not in value and ":" not in value.strip("/"):
        raise _wrong(
            name, "the YAML of a pod, not a path; in the shell `pod_template=@FILE` gives the file's text", value
        )
    return value


LEAST_GRACE_SECONDS = 10
"""A driver needs some seconds to stop at its barrier; a grace of none removes a pod while its container works."""
_READERS: Mapping[str, Callable[[str, object], Any]] = {
    "image": _matching(_IMAGE, "the name of an image, without blanks"),
    "namespace": _matching(_DNS_LABEL, "the name of a namespace: small letters, digits and '-'"),
    "service_account": _matching(_DNS_NAME, "the name of a service account"),
    "priority_class": _matching(_DNS_NAME, "the name of a PriorityClass"),
    **{
        name: _matching(_QUANTITY, "a quantity as in a pod: 2, 500m, 4Gi")
        for name in ("cpu", "memory", "cpu_limit", "memory_limit")
    },
    "node_selector": _pairs,
    "labels": _pairs,
    "annotations": _pairs,
    "tolerations": _tolerations,
    "env_from_secrets": _env_from_secrets,
    "volumes": _volumes,
    "pod_template": _template,
    "image_pull_secrets": _names,
    "image_pull_policy": _pull_policy,
    "keep_pods": _count(1000),
    "grace_seconds": _count(86_400, LEAST_GRACE_SECONDS),
}
