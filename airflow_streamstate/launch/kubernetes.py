"""The Kubernetes launcher: the pod's name is the mutual exclusion, the pod itself the tombstone."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    MalformedMessageError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
    UntrustedRecordError,
)
from airflow_streamstate.launch.command import build_bundle, check_remote, check_shown
from airflow_streamstate.launch.folder import LaunchFolder, tail_bytes, write_file
from airflow_streamstate.launch.interface import (
    Connect,
    LaunchHandle,
    LaunchPlace,
    LaunchRequest,
    LaunchStatus,
    check_launch,
    check_same,
    id_in,
    untrusted,
)
from airflow_streamstate.launch.kubernetes_api import ApiError, Cluster, KubernetesOptions, connected, refusal
from airflow_streamstate.launch.kubernetes_pod import (
    DRIVER,
    FINALIZER,
    KEY_NOTE,
    LAUNCH_LABEL,
    NAMESPACE_NOTE,
    PARTS_NOTE,
    SCOPE_LABEL,
    SCOPE_NOTE,
    build_pod,
    build_secrets,
    own_labels,
    pack,
    pod_name,
    secret_names,
    status_of,
)
from airflow_streamstate.launch.rest import TooSlowError, within
from airflow_streamstate.launch.submit_options import is_in_process

POLL_SECONDS = 0.25
FORCE_SECONDS = 30.0
"""How long a node may take to end a pod after the grace."""
KEPT_LOG = "driver.log"
_KEPT_LOG_BYTES = 1 << 20
_BYTES_OF_A_LINE = 20
_MOST_LINES = 50_000
_MOST_LOG_BYTES = 64 << 20
"""Of what a node sends of a log: a line may have any length."""
_LOG_SECONDS = 20.0
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,127}")
_MOST_PARTS = 64
_SHOWN = re.compile(
    r"spark\.(?:executorEnv\.|executor\.(?:extra|default)JavaOptions$|kubernetes\.executor\.(?:annotation|label)\.)"
)
"""Settings that Spark writes into the pods of its executors."""
_RIGHTS = (
    *((verb, "pods", "") for verb in ("create", "get", "list", "delete", "patch")),
    ("get", "pods", "log"),
    *((verb, "secrets", "") for verb in ("create", "delete")),
    ("get", "namespaces", ""),
    ("get", "serviceaccounts", ""),
)
_OPERATORS = ("sparkoperator.k8s.io/v1beta2", "spark.apache.org/v1")


class KubernetesLauncher:
    """A ``Launcher`` for drivers in pods of a Kubernetes cluster.

    Args:
        connect: gives the ``kubernetes.client.ApiClient`` of an Airflow connection; None outside of Airflow.
    """

    name = "kubernetes"
    default_master = "k8s://https://kubernetes.default.svc"
    limits: ClassVar[Mapping[str, str]] = {}
    reaching: ClassVar[Collection[str]] = (
        *("kubeconfig", "context", "namespace", "service_account"),
        # What a pod may have of its node, of the namespace and of other pods. Its image is code, as the script is.
        *("volumes", "env_from_secrets", "image_pull_secrets", "pod_template"),
        *("labels", "annotations", "node_selector", "tolerations", "priority_class"),
    )

    def __init__(self, clock: Clock, connect: Connect | None = None) -> None:
        self._clock = clock
        self._connect = connect
        self._clusters: dict[tuple[str, str, str], Cluster] = {}

    def check(self, request: LaunchRequest) -> None:
        options = _checked(request, is_code_there=False)
        cluster = self._cluster(options.kubeconfig, options.context, request.conn_id)
        where = {"cluster": cluster.url, "namespace": options.namespace}
        _check_rights(cluster, options.namespace)
        _check_namespace(cluster, options.namespace)
        _check_account(cluster, options, needs_executors=request.master.startswith("k8s://"))
        _check_operators(cluster, options.namespace, request.place)
        pod = build_pod(request.place, options, parts=1)
        try:
            # All that the cluster itself would refuse: quota, policies, classes, limits.
            cluster.call("POST", f"{_pods(options.namespace)}", pod, {"dryRun": "All"})
        except ApiError as error:
            if error.status != 409:
                raise _pod_refused(error, **where) from None

    def spark_version(self, request: LaunchRequest) -> str:  # noqa: ARG002 - the image's is not known here
        """Unknown: it is the image's."""
        return ""

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        options = _checked(request, is_code_there=False)
        cluster = self._cluster(options.kubeconfig, options.context, request.conn_id)
        _claim_folder(request)
        pod = self._pod_at(cluster, request.place, options)
        is_ours = False
        if pod is not None and not _waits_for_files(pod):
            return _handle_of(pod, request.place, options, cluster)
        _checked(request, is_code_there=True)
        parts = pack(request, build_bundle(request), options)
        if pod is None:
            pod, is_ours = self._create(cluster, request.place, options, len(parts))
        handle = _handle_of(pod, request.place, options, cluster)
        if _notes(pod).get(PARTS_NOTE) == str(len(parts)):
            self._bring_files(cluster, request.place, options, handle, parts, may_withdraw=is_ours)
        if is_ours:
            self._tidy(cluster, request.place, options)
        return handle

    def find(self, place: LaunchPlace) -> LaunchHandle | None:
        options = KubernetesOptions.from_options(place.options)
        cluster = self._cluster(options.kubeconfig, options.context, place.conn_id)
        pod = self._pod_at(cluster, place, options)
        return None if pod is None else _handle_of(pod, place, options, cluster)

    def handle_at(self, place: LaunchPlace, recorded: LaunchHandle) -> LaunchHandle:
        """As ``Launcher.handle_at``. Of the record only the uids of pod and namespace and the count of its Secrets are
        taken; the pod has to name the stream and the launch."""
        check_launch(place, recorded)
        options = KubernetesOptions.from_options(place.options)
        uid = id_in(place, recorded, "uid", _UID)
        if not uid:
            raise untrusted(place, "uid", "none", "the uid of a pod")
        parts = recorded.data.get("parts", 1)
        if type(parts) is not int or not 1 <= parts <= _MOST_PARTS:
            raise untrusted(place, "parts", parts, f"a number from 1 to {_MOST_PARTS}")
        ours = {
            "namespace": options.namespace,
            "pod": pod_name(place.scope, place.launch_key),
            "kubeconfig": options.kubeconfig,
            "context": options.context,
            "conn_id": place.conn_id,
            "scope": place.scope,
        }
        check_same(place, recorded, ours)
        its = {"uid": uid, "namespace_uid": id_in(place, recorded, "namespace_uid", _UID), "parts": parts}
        return LaunchHandle(self.name, place.launch_key, {**ours, **its, "folder": place.folder})

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        return self._look(_Facts(handle))[0]

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        facts = _Facts(handle)
        status, pod = self._look(facts)
        if pod is None:
            return status
        if status.has_ended:
            self._end_executors(facts)
            return status
        if status.state != "unknown":
            self._keep_log(facts)  # a silent node would keep us waiting
        # Never 0: a cluster forgets such a pod at once, while its container works on.
        grace = max(1, math.ceil(grace_seconds))
        try:
            options = {"gracePeriodSeconds": grace, "preconditions": {"uid": facts.uid}}
            self._of(facts).call("DELETE", facts.path, options)
        except ApiError as error:
            if error.status != 404:
                return self._unknown(f"its end could not be ordered: {error.words}")
        deadline = self._clock.monotonic_seconds() + grace + FORCE_SECONDS
        status = self.status(handle)
        while not status.has_ended and not status.reported_end and self._clock.monotonic_seconds() < deadline:
            self._clock.sleep(POLL_SECONDS)
            status = self.status(handle)
        if status.has_ended:
            self._keep_log(facts)
            self._end_executors(facts)
        return status

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        if tail_bytes <= 0:
            return ""
        facts = _Facts(handle)
        try:
            body = b"" if self._read(facts) is None else self._log(facts, tail_bytes)
        except (ApiError, StreamStateError):
            body = b""
        return (body or facts.kept_log(tail_bytes)).decode("utf-8", "ignore")

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:  # noqa: ARG002 - none has a URL
        """None: the driver's pages are inside of the cluster; ``kubectl port-forward`` brings them here."""
        return {}

    def forget(self, handle: LaunchHandle) -> None:
        facts = _Facts(handle)
        if not self.status(handle).has_ended:
            return
        try:
            self._end_executors(facts)
            self._remove(facts)
        except ApiError as error:
            raise UnavailableError(
                "what the cluster keeps of a driver cannot be removed now",
                namespace=facts.namespace,
                pod=facts.pod,
                reason=error.words,
            ) from None

    def _cluster(self, kubeconfig: str, context: str, conn_id: str) -> Cluster:
        """A client for this way to a cluster; a new one after credentials were refused, which may be others now."""
        way = (kubeconfig, context, conn_id)
        found = self._clusters.get(way)
        if found is None or found.is_refused:
            found = self._clusters[way] = self._connected(*way)
        return found

    def _connected(self, kubeconfig: str, context: str, conn_id: str) -> Cluster:
        if not conn_id:
            return connected(kubeconfig, context)
        if self._connect is None:
            raise InvalidRequestError(
                "this driver is reached by an Airflow connection, and Airflow is not here",
                conn_id=conn_id,
                next_step="Ask from Airflow, or deploy with `kubeconfig` and `context`.",
            )
        return Cluster(self._connect(conn_id))

    def _of(self, facts: _Facts) -> Cluster:
        return self._cluster(facts.kubeconfig, facts.context, facts.conn_id)

    def _pod_at(self, cluster: Cluster, place: LaunchPlace, options: KubernetesOptions) -> dict[str, Any] | None:
        """The pod of this place; None if it does not exist.

        Raises:
            ConflictError: a pod of a different maker has its name.
            UnavailableError: the cluster cannot be asked.
        """
        name = pod_name(place.scope, place.launch_key)
        try:
            pod = cluster.call("GET", f"{_pods(options.namespace)}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise UnavailableError(
                "the cluster does not report whether this driver has a pod",
                cluster=cluster.url,
                namespace=options.namespace,
                reason=error.words,
                next_step=f"Try again; `kubectl -n {options.namespace} get pod {name}` asks it.",
            ) from None
        if not _is_of(pod, place.scope, place.launch_key):
            raise ConflictError(
                "a pod of this name was not made by this package",
                namespace=options.namespace,
                pod=name,
                next_step=f"Remove it: `kubectl -n {options.namespace} delete pod {name}`.",
            )
        return pod

    def _create(
        self, cluster: Cluster, place: LaunchPlace, options: KubernetesOptions, parts: int
    ) -> tuple[dict[str, Any], bool]:
        """The pod, and whether this call has created it; another caller may have been faster."""
        pod = build_pod(place, options, parts)
        where = {"cluster": cluster.url, "namespace": options.namespace}
        try:
            space = cluster.call("GET", f"/api/v1/namespaces/{options.namespace}")
            pod["metadata"]["annotations"][NAMESPACE_NOTE] = space["metadata"]["uid"]
            return cluster.call("POST", _pods(options.namespace), pod), True
        except ApiError as error:
            if error.status == 409:
                found = self._pod_at(cluster, place, options)
                if found is not None:
                    return found, False
            if error.status == 409 or (error.was_sent and (error.status == 0 or error.status >= 500)):
                raise OutcomeUnknownError(
                    "the cluster has not reported whether it took the driver's pod",
                    **where,
                    reason=error.words,
                    next_step="Launch again with the same key: it is the same driver.",
                ) from None
            raise _pod_refused(error, **where) from None

    def _bring_files(
        self,
        cluster: Cluster,
        place: LaunchPlace,
        options: KubernetesOptions,
        handle: LaunchHandle,
        parts: list[bytes],
        *,
        may_withdraw: bool,
    ) -> None:
        facts = _Facts(handle)
        for secret in build_secrets(facts.pod, place, parts, facts.uid):
            try:
                cluster.call("POST", f"/api/v1/namespaces/{facts.namespace}/secrets", secret)
            except ApiError as error:
                if error.status == 409:
                    continue
                if may_withdraw and error.status in (400, 403, 404, 422):
                    self.kill(handle, 1.0)
                    with contextlib.suppress(UnavailableError):
                        self.forget(handle)
                raise _pod_refused(error, cluster=cluster.url, namespace=options.namespace) from None

    def _read(self, facts: _Facts) -> dict[str, Any] | None:
        """The pod of the handle; None if it is not there any more. Raises as ``Cluster.call``.

        Raises:
            UntrustedRecordError: it was made for another stream or launch.
        """
        try:
            pod = self._of(facts).call("GET", facts.path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        if pod["metadata"]["uid"] != facts.uid:
            return None
        if facts.scope and not _is_of(pod, facts.scope, facts.launch_key):
            raise UntrustedRecordError(
                "the pod that the record names was not made for this launch", namespace=facts.namespace, pod=facts.pod
            )
        return pod

    def _look(self, facts: _Facts) -> tuple[LaunchStatus, dict[str, Any] | None]:
        """The status of the driver, and its pod if it was found."""
        try:
            pod = self._read(facts)
            return (self._vanished(facts) if pod is None else status_of(pod, self._clock.now())), pod
        except ApiError as error:
            return self._unknown(error.words), None
        except StreamStateError as error:
            return self._unknown(str(error.message)), None

    def _vanished(self, facts: _Facts) -> LaunchStatus:
        """A pod that is not there was removed by force; its container may work on where its node is away."""
        try:
            space = self._of(facts).call("GET", f"/api/v1/namespaces/{facts.namespace}")
            if facts.namespace_uid and space["metadata"]["uid"] != facts.namespace_uid:
                return self._unknown("another cluster answers here, which never had this driver's namespace")
        except ApiError as error:
            if error.status == 404:
                return self._unknown("the namespace of its pod is not there, or another cluster answers here")
            if error.status != 403:
                return self._unknown(error.words)
        return self._unknown("its pod was removed by force: the cluster does not know its end", reported_end=True)

    def _unknown(self, reason: str, *, reported_end: bool = False) -> LaunchStatus:
        return LaunchStatus("unknown", None, reason, self._clock.now(), reported_end=reported_end)

    def _log(self, facts: _Facts, count: int) -> bytes:
        """The last bytes of the container's log. By lines: a limit of bytes would keep the first ones."""
        lines = min(_MOST_LINES, count // _BYTES_OF_A_LINE + 10)
        query = {"container": DRIVER, "tailLines": lines}
        cluster = self._of(facts)

        def read() -> bytes:
            answer, kept, came = cluster.open("GET", f"{facts.path}/log", query=query), b"", 0
            try:
                for chunk in answer.stream(1 << 16):
                    kept, came = (kept + chunk)[-count:], came + len(chunk)
                    if came > _MOST_LOG_BYTES:
                        answer.close()
                        break
            finally:
                answer.release_conn()
            return kept

        try:
            return within(_LOG_SECONDS, read)
        except TooSlowError as error:
            raise ApiError(0, str(error), was_sent=True) from None

    def _keep_log(self, facts: _Facts) -> None:
        """A copy on this machine, where its folder is: the node removes the log with a container that was deleted."""
        folder = Path(facts.folder)
        with contextlib.suppress(ApiError, StreamStateError, OSError):
            body = self._log(facts, _KEPT_LOG_BYTES)
            if body and folder.is_dir():
                write_file(folder / KEPT_LOG, body)

    def _end_executors(self, facts: _Facts) -> None:
        """Spark's executors end with their driver by themselves; those that have not noticed yet are ended here."""
        cluster, pods = self._of(facts), _pods(facts.namespace)
        query = {"labelSelector": f"{LAUNCH_LABEL}={facts.pod.rpartition('-')[2]},spark-role=executor"}
        with contextlib.suppress(ApiError):
            for item in cluster.call("GET", pods, query=query).get("items", ()):
                with contextlib.suppress(ApiError):
                    cluster.call("DELETE", f"{pods}/{item['metadata']['name']}", {"gracePeriodSeconds": 1})

    def _remove(self, facts: _Facts) -> None:
        cluster = self._of(facts)
        for secret in secret_names(facts.pod, facts.parts):
            with _tolerated(404):
                cluster.call("DELETE", f"/api/v1/namespaces/{facts.namespace}/secrets/{secret}")
        with _tolerated(404):
            cluster.call("DELETE", facts.path, {"preconditions": {"uid": facts.uid}})
        pod = self._read(facts)
        if pod is None:
            return
        others = [item for item in pod["metadata"].get("finalizers", ()) if item != FINALIZER]
        version = pod["metadata"]["resourceVersion"]
        with _tolerated(404):
            cluster.call("PATCH", facts.path, {"metadata": {"finalizers": others, "resourceVersion": version}})

    def _tidy(self, cluster: Cluster, place: LaunchPlace, options: KubernetesOptions) -> None:
        """Forget ended pods of the stream beyond those that are kept. What fails now is done at the next launch."""
        query = {"labelSelector": f"{SCOPE_LABEL}={own_labels(place)[SCOPE_LABEL]},!spark-role"}
        with contextlib.suppress(ApiError, UnavailableError):
            pods = cluster.call("GET", _pods(options.namespace), query=query).get("items", [])
            ours = [pod for pod in pods if _is_of(pod, place.scope, str(_notes(pod).get(KEY_NOTE)))]
            ended = [pod for pod in ours if status_of(pod, self._clock.now()).has_ended]
            ended.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)
            for pod in ended[options.keep_pods :]:
                self.forget(_handle_of(pod, place, options, cluster))


class _Facts:
    """The facts of a handle.

    Raises:
        InvalidRequestError: it is another launcher's.
        MalformedMessageError: it names no pod.
    """

    def __init__(self, handle: LaunchHandle) -> None:
        if handle.launcher != KubernetesLauncher.name:
            raise InvalidRequestError(
                "this handle is another launcher's", launcher=handle.launcher, launch_key=handle.launch_key
            )
        data = handle.data
        if not all(isinstance(data.get(name), str) and data[name] for name in ("namespace", "pod", "uid")):
            raise MalformedMessageError("this handle names no pod", launch_key=handle.launch_key)
        self.namespace, self.pod, self.uid = str(data["namespace"]), str(data["pod"]), str(data["uid"])
        self.namespace_uid, self.scope = str(data.get("namespace_uid", "")), str(data.get("scope", ""))
        self.launch_key = handle.launch_key
        self.kubeconfig, self.context = str(data.get("kubeconfig", "")), str(data.get("context", ""))
        self.conn_id, self.folder = str(data.get("conn_id", "")), str(data.get("folder", ""))
        self.parts = int(str(data.get("parts", 1)))
        self.path = f"{_pods(self.namespace)}/{self.pod}"

    def kept_log(self, count: int) -> bytes:
        return tail_bytes(Path(self.folder) / KEPT_LOG, count) if self.folder else b""


def _handle_of(
    pod: Mapping[str, Any], place: LaunchPlace, options: KubernetesOptions, cluster: Cluster
) -> LaunchHandle:
    notes = _notes(pod)
    return LaunchHandle(
        launcher=KubernetesLauncher.name,
        launch_key=str(notes[KEY_NOTE]),
        data={
            "cluster": cluster.url,
            "namespace": options.namespace,
            "pod": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
            "namespace_uid": notes.get(NAMESPACE_NOTE, ""),
            "parts": int(notes.get(PARTS_NOTE, 1)),
            "kubeconfig": options.kubeconfig,
            "context": options.context,
            "conn_id": place.conn_id,
            "scope": place.scope,
            "folder": place.folder if notes[KEY_NOTE] == place.launch_key else "",
        },
    )


def _is_of(pod: Mapping[str, Any], scope: str, launch_key: str) -> bool:
    """Whether a pod has the name and the notes of this launch."""
    notes = _notes(pod)
    is_named = pod["metadata"].get("name", pod_name(scope, launch_key)) == pod_name(scope, launch_key)
    return is_named and (notes.get(SCOPE_NOTE), notes.get(KEY_NOTE)) == (scope, launch_key)


def _checked(request: LaunchRequest, *, is_code_there: bool) -> KubernetesOptions:
    options = KubernetesOptions.from_options(request.options)
    container = build_pod(request.place, options, parts=1)["spec"]["containers"][0]
    if not container.get("image"):
        raise InvalidRequestError(
            "no image is given for the driver's pod",
            next_step="Give one with Java, Spark and Python: `--launcher-option image=registry.example.com/spark:4`.",
        )
    if request.spark_submit is not None:
        raise InvalidRequestError(
            "a driver in a pod is started by the spark-submit of its image, not by a Spark connection's",
            next_step="Leave the Spark connection out, and give its master and settings to the deployment.",
        )
    checked = check_remote(request, None, is_code_there=is_code_there)
    if not is_in_process(request.master):
        check_shown(checked.conf, request.driver_config.get("secrets"), _SHOWN, "the pods of executors")
    return options


def _claim_folder(request: LaunchRequest) -> None:
    folder = LaunchFolder(Path(request.folder))
    own = {"launch_key": request.launch_key, "launcher": KubernetesLauncher.name}
    folder.prepare(own)
    if (folder.intent() or own).get("launch_key") != request.launch_key:
        raise ConflictError(
            "this folder belongs to another launch",
            folder=request.folder,
            launch_key=request.launch_key,
            next_step="Give every launch key a separate folder.",
        )


def _waits_for_files(pod: Mapping[str, Any]) -> bool:
    """Whether the pod may still lack its Secrets, since its first caller died between pod and Secrets."""
    status = pod.get("status", {})
    states = [item.get("state", {}) for item in status.get("containerStatuses", ())]
    has_begun = any(state.keys() & {"running", "terminated"} for state in states)
    return status.get("phase", "Pending") == "Pending" and not has_begun and "deletionTimestamp" not in pod["metadata"]


def _check_rights(cluster: Cluster, namespace: str) -> None:
    lacking = []
    for verb, resource, sub in _RIGHTS:
        asked = {"namespace": namespace, "verb": verb, "resource": resource, "subresource": sub}
        if resource == "namespaces":
            asked["name"] = namespace
        review = {"spec": {"resourceAttributes": asked}}
        try:
            answer = cluster.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        except ApiError as error:
            raise refusal(error, "the cluster does not report which rights there are", cluster=cluster.url) from None
        if not answer.get("status", {}).get("allowed"):
            lacking.append(f"{verb} {resource}{f'/{sub}' if sub else ''}")
    if lacking:
        verb, _, resource = lacking[0].partition(" ")
        raise InvalidRequestError(
            "rights are lacking in the namespace of the drivers",
            cluster=cluster.url,
            namespace=namespace,
            lacking=", ".join(lacking),
            next_step=(
                f"Grant them: `kubectl -n {namespace} create role streamstate-{verb} --verb={verb} "
                f"--resource={resource}` and `kubectl -n {namespace} create rolebinding …`, or take the Role of "
                "docs/how-to/kubernetes.md, which has all of them."
            ),
        )


def _check_namespace(cluster: Cluster, namespace: str) -> None:
    try:
        space = cluster.call("GET", f"/api/v1/namespaces/{namespace}")
    except ApiError as error:
        if error.status == 404:
            raise InvalidRequestError(
                "the namespace is not there",
                cluster=cluster.url,
                namespace=namespace,
                next_step=f"Make it: `kubectl create namespace {namespace}`, or name another one.",
            ) from None
        raise refusal(error, "the namespace cannot be read", cluster=cluster.url, namespace=namespace) from None
    if space.get("status", {}).get("phase") == "Terminating":
        raise InvalidRequestError(
            "the namespace is being deleted",
            cluster=cluster.url,
            namespace=namespace,
            next_step=f"Wait until `kubectl get namespace {namespace}` does not find it, or name another one.",
        )


def _check_account(cluster: Cluster, options: KubernetesOptions, *, needs_executors: bool) -> None:
    namespace, account = options.namespace, options.service_account
    try:
        cluster.call("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}")
    except ApiError as error:
        if error.status == 404:
            raise InvalidRequestError(
                "the service account of the driver is not there",
                namespace=namespace,
                service_account=account,
                next_step=f"Make it: `kubectl -n {namespace} create serviceaccount {account}`.",
            ) from None
        raise refusal(error, "the service account cannot be read", namespace=namespace, account=account) from None
    if not needs_executors:
        return
    asked = {"namespace": namespace, "verb": "create", "resource": "pods"}
    review = {
        "metadata": {"namespace": namespace},
        "spec": {"resourceAttributes": asked, "user": f"system:serviceaccount:{namespace}:{account}"},
    }
    path = f"/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews"
    with contextlib.suppress(ApiError):  # a right that is good to have, and that few give
        if not cluster.call("POST", path, review).get("status", {}).get("allowed"):
            raise InvalidRequestError(
                "the driver's service account may not start executors",
                namespace=namespace,
                service_account=account,
                next_step=(
                    f"Grant it: `kubectl -n {namespace} create rolebinding spark --clusterrole=edit "
                    f"--serviceaccount={namespace}:{account}`, or take a master local[N]."
                ),
            )


def _check_operators(cluster: Cluster, namespace: str, place: LaunchPlace) -> None:
    """A SparkApplication of the stream's name runs the same job: two would share its checkpoint."""
    names = {place.scope.rpartition("/")[2], pod_name(place.scope, place.launch_key)} - {""}
    for group in _OPERATORS:
        for name in sorted(names):
            with contextlib.suppress(ApiError):  # no such kind here, no such name, or no right to look
                cluster.call("GET", f"/apis/{group}/namespaces/{namespace}/sparkapplications/{name}")
                raise InvalidRequestError(
                    "a SparkApplication of this name is there: an operator runs it, and would restart it",
                    namespace=namespace,
                    spark_application=name,
                    next_step=(
                        f"Remove it: `kubectl -n {namespace} delete sparkapplication {name}` ends its driver, too. "
                        "Once that is gone, take its query over by `streamstate adopt --stopped`."
                    ),
                )


def _pod_refused(error: ApiError, **where: object) -> InvalidRequestError | UnavailableError:
    namespace = where.get("namespace")
    if error.status == 403 and "exceeded quota" in error.reason:
        return UnavailableError(
            "the namespace's quota is used up",
            **where,
            reason=error.reason,
            next_step=f"Free or raise it: `kubectl -n {namespace} describe resourcequota`.",
        )
    if error.status == 403 and "being terminated" in error.reason:
        return InvalidRequestError(
            "the namespace is being deleted",
            **where,
            next_step=f"Wait until `kubectl get namespace {namespace}` does not find it, or name another one.",
        )
    return refusal(error, "the cluster does not take the driver's pod", **where)


@contextlib.contextmanager
def _tolerated(*statuses: int) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status not in statuses:
            raise


def _notes(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    found = pod["metadata"].get("annotations") or {}
    return found if isinstance(found, dict) else {}


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"
