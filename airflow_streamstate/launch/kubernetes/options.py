"""The options of the Kubernetes launcher: which cluster, which image, and how the pod looks. They hold no secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.options import option_text, read_options

if TYPE_CHECKING:
    from typing_extensions import Self

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
        """The pod template as an object; {} for none.

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
            # It costs a few characters, and stands for any size once it is written as JSON.
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
