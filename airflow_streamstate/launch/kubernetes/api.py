"""The one wall around the ``kubernetes`` client: how a cluster is reached, one request, and what its answers mean.

Objects stay plain JSON, since models of the client lag behind the cluster's fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import kubernetes
import urllib3

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.rest import TooSlowError, shown, within
from airflow_streamstate.store.plain_http import is_readable_on_its_way

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
        """One lower-case sentence for people."""
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
        # A client of Airflow's has been made already, so its pools are told, too: three tries of a silent server
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
            401: "Renew the credentials: `kubectl auth whoami` says which are used.",
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
