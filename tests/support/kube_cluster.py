"""A real cluster of Kubernetes on loopback: etcd, API server, scheduler, controllers, and one node with containerd.

Drivers run with the machine's own Python and Java, which their pods mount; their images hold next to nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes
import yaml

from support.kube_program import Programs, find_or_build
from support.launches import wait_until
from support.loopback import free_port
from support.versitygw import die_with_the_test

NODE = "node1"
ADMIN = "token-of-the-admin"
IMAGE = "streamstate.local/driver:1"
PAUSE_IMAGE = "streamstate.local/pause:1"
START_SECONDS = 240.0
OPERATOR = "sparkoperator.k8s.io"
"""The group of Kubeflow's operator."""
_AUDIT_LOG = "audit.log"
_FOLDERS = ("dev", "proc", "sys", "etc", "usr", "tmp", "root", "var", "run", "opt", "home")
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


class KubernetesCluster:
    """A running cluster.

    Attributes:
        kubeconfig: of the administrator.
        authority: the certificate by which clients know the API server.
    """

    def __init__(self, base: Path, programs: Programs) -> None:
        self.base = base
        self.kubeconfig = base / "admin.kubeconfig"
        self.authority = base / "certs" / "apiserver.crt"
        self._programs = programs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        names = ("etcd", "peer", "api", "kubelet", "health", "manager", "scheduler")
        self._ports = {name: free_port() for name in names}
        self.url = f"https://127.0.0.1:{self._ports['api']}"
        self._users: dict[str, str] = {}

    def start(self) -> None:
        """Start all parts, and wait until the node takes pods."""
        for name in ("certs", "containerd", "kubelet", "cni"):
            (self.base / name).mkdir()
        self._write_files()
        self._start("etcd", self._etcd())
        self.start_api_server()
        self._start(
            "containerd", [self._programs.of_debian("containerd"), "--config", str(self.base / "containerd.toml")]
        )
        self._import_images()
        self._start("manager", self._manager())
        self._start("scheduler", self._scheduler())
        self.start_kubelet()
        self._make_ready()

    def stop(self) -> None:
        """End every process that was started here, and what containerd has mounted."""
        for name in ("kubelet", "scheduler", "manager"):
            self.end(name)
        for pid in _shims(self.base):
            _end_tree(pid)
        for name in ("containerd", "api", "etcd"):
            self.end(name)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if str(self.base) in line:
                subprocess.run(["umount", "-l", line.split()[1]], capture_output=True, check=False)
        for folder in sorted(Path("/sys/fs/cgroup").glob("*/k8s.io/**/"), reverse=True):
            with contextlib.suppress(OSError):  # another's, with processes in it
                folder.rmdir()

    def start_api_server(self) -> None:
        self._start("api", self._api_server())
        wait_until(lambda: self._is_ready(), lambda: self.log("api"), START_SECONDS)

    def start_kubelet(self) -> None:
        self._start("kubelet", self._kubelet())

    def end(self, name: str) -> None:
        """End a part at once."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Within this block the part takes connections and answers nothing."""
        process = self._processes[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        return (self.base / f"{name}.log").read_text(errors="replace")[-3000:]

    def call(self, method: str, path: str, body: object = None, content: str = "application/merge-patch+json") -> Any:
        """One request as the administrator; the JSON of the answer, or its status where it is no success."""
        return asked(self._client(), method, path, body, content)

    def text(self, path: str) -> str:
        """The text of a page that is no JSON, such as a log; "" where it cannot be had."""
        found = asked(self._client(), "GET", path, raw=True)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""

    def namespace(self, name: str, role_yaml: str = "") -> Path:
        """A new namespace, and the kubeconfig of a user with just this role in it."""
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: isinstance(self.call("GET", account), dict), "the service account of a namespace", 60)
        self.grant(name, role_yaml)
        return self.write_kubeconfig(f"user-{name}", f"token-of-user-{name}")

    def grant(self, namespace: str, role_yaml: str) -> None:
        """Give the user of this namespace what the YAML states for NAMESPACE and USER."""
        named = role_yaml.replace("NAMESPACE", namespace).replace("USER", f"user-{namespace}")
        for item in yaml.safe_load_all(named) if role_yaml else ():
            plural = {"Role": "roles", "RoleBinding": "rolebindings", "ServiceAccount": "serviceaccounts"}[item["kind"]]
            group = "/api/v1" if plural == "serviceaccounts" else "/apis/rbac.authorization.k8s.io/v1"
            answer = self.call("POST", f"{group}/namespaces/{namespace}/{plural}", item)
            assert isinstance(answer, dict), (item["kind"], answer)

    def spark_application(self, namespace: str, name: str) -> Any:
        """A new object of the kind that Kubeflow's operator runs; there is no operator here."""
        names = {"plural": "sparkapplications", "singular": "sparkapplication", "kind": "SparkApplication"}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        versions = [{"name": "v1beta2", "served": True, "storage": True, "schema": schema}]
        approved = {"api-approved.kubernetes.io": "unapproved, of a test"}
        kind = {
            "metadata": {"name": f"sparkapplications.{OPERATOR}", "annotations": approved},
            "spec": {"group": OPERATOR, "scope": "Namespaced", "names": names, "versions": versions},
        }
        told = self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kind)
        assert isinstance(told, dict) or told == 409, told
        one = {"apiVersion": f"{OPERATOR}/v1beta2", "kind": "SparkApplication", "metadata": {"name": name}}
        path = f"/apis/{OPERATOR}/v1beta2/namespaces/{namespace}/sparkapplications"
        wait_until(lambda: isinstance(self.call("POST", path, one), dict), "the kind", 60)
        return self.call("GET", f"{path}/{name}")

    def requests(self) -> Counter[str]:
        """What others than the administrator have asked so far: user, verb and resource."""
        found: Counter[str] = Counter()
        for line in (self.base / _AUDIT_LOG).read_text().split("\n")[:-1]:  # what follows is not yet a whole line
            event = json.loads(line)
            thing = event.get("objectRef", {})
            kind = "/".join(filter(None, (thing.get("resource", ""), thing.get("subresource", ""))))
            found[f"{event['user']['username']} {event['verb']} {kind}"] += 1
        return found

    def write_kubeconfig(self, user: str, token: str) -> Path:
        path = self.base / f"{user}.kubeconfig"
        path.write_text(yaml.safe_dump(_kubeconfig(self.url, self.authority, user, token)))
        return path

    def remove_namespace(self, name: str) -> None:
        """Remove it, and what still runs in it."""
        pods = self.call("GET", f"/api/v1/namespaces/{name}/pods")
        for pod in pods.get("items", ()) if isinstance(pods, dict) else ():
            path = f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}"
            self.call("DELETE", path, {"gracePeriodSeconds": 1})
            self.call("PATCH", path, {"metadata": {"finalizers": None}})
        self.call("DELETE", f"/api/v1/namespaces/{name}")

    def _client(self) -> Any:
        return client_of(self.url, self.authority, ADMIN)

    def _is_ready(self) -> bool:
        process = self._processes["api"]
        assert process.poll() is None, self.log("api")
        with contextlib.suppress(Exception):
            return asked(self._client(), "GET", "/readyz", raw=True) == b"ok"
        return False

    def _start(self, name: str, command: list[str]) -> None:
        with (self.base / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["nice", "-n", "5", *command],
                cwd=self.base,
                env={
                    **os.environ,
                    "PATH": f"{self._programs.debian}/usr/bin:{self._programs.debian}/usr/sbin:{os.environ['PATH']}",
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_the_test,
            )

    def _write_files(self) -> None:
        subprocess.run(["openssl", "genrsa", "-out", "sa.key", "2048"], cwd=self.base, check=True, capture_output=True)
        users = [f"{ADMIN},admin,1,system:masters"]
        users += [f"token-of-user-s{number},user-s{number},{number + 10}" for number in range(400)]
        (self.base / "tokens.csv").write_text("\n".join(users) + "\n")
        self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(self.url, self.authority, "admin", ADMIN)))
        (self.base / "audit.yaml").write_text(_AUDIT)
        (self.base / _AUDIT_LOG).touch()
        (self.base / "containerd.toml").write_text(_CONTAINERD.format(base=self.base, pause=PAUSE_IMAGE))
        # A network of which no pod makes use: without one the node would not count as ready.
        (self.base / "cni" / "10-none.conflist").write_text(
            json.dumps({"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]})
        )
        (self.base / "kubelet.yaml").write_text(
            _KUBELET.format(base=self.base, port=self._ports["kubelet"], health=self._ports["health"])
        )

    def _etcd(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        return [
            self._programs.of_debian("etcd"),
            *("--name", "one", "--data-dir", str(self.base / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
        ]

    def _api_server(self) -> list[str]:
        return [
            *(str(self._programs.kube), "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}"),
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self._ports['api']}"),
            *("--audit-policy-file=audit.yaml", f"--audit-log-path={self.base}/{_AUDIT_LOG}"),
            *(f"--cert-dir={self.base}/certs", "--token-auth-file=tokens.csv", "--authorization-mode=RBAC"),
            *("--service-account-key-file=sa.key", "--service-account-signing-key-file=sa.key"),
            *(f"--service-account-issuer={self.url}", "--service-cluster-ip-range=127.96.0.0/16"),
            *("--allow-privileged=true", "--endpoint-reconciler-type=none", "--event-ttl=10m"),
        ]

    def _manager(self) -> list[str]:
        return [
            *(str(self._programs.kube), "kube-controller-manager", f"--kubeconfig={self.kubeconfig}"),
            *("--bind-address=127.0.0.1", f"--secure-port={self._ports['manager']}", f"--cert-dir={self.base}/manager"),
            *("--leader-elect=false", "--service-account-private-key-file=sa.key"),
            *(f"--root-ca-file={self.base}/certs/apiserver.crt", "--node-monitor-grace-period=12s"),
        ]

    def _scheduler(self) -> list[str]:
        return [
            *(str(self._programs.kube), "kube-scheduler", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"),
            *("--bind-address=127.0.0.1", f"--secure-port={self._ports['scheduler']}"),
            f"--cert-dir={self.base}/scheduler",
        ]

    def _kubelet(self) -> list[str]:
        return [
            *(str(self._programs.kube), "kubelet", f"--config={self.base}/kubelet.yaml"),
            *(
                f"--kubeconfig={self.kubeconfig}",
                f"--root-dir={self.base}/kubelet",
                f"--cert-dir={self.base}/kubelet/pki",
            ),
            *(f"--hostname-override={NODE}", "--cloud-provider=external"),
        ]

    def _import_images(self) -> None:
        images = {
            PAUSE_IMAGE: _image(PAUSE_IMAGE, {"pause": self._programs.pause.read_bytes()}, ["/pause"]),
            IMAGE: _image(IMAGE, {"opt/entrypoint.sh": _ENTRYPOINT.encode()}, ["/opt/entrypoint.sh"]),
        }
        socket = self.base / "containerd.sock"
        wait_until(socket.exists, lambda: self.log("containerd"), START_SECONDS)
        for name, body in images.items():
            path = self.base / "image.tar"
            path.write_bytes(body)
            command = [
                self._programs.of_debian("ctr"),
                "-a",
                str(socket),
                "-n",
                "k8s.io",
                "images",
                "import",
                str(path),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, f"{name}: {done.stderr} {self.log('containerd')}"

    def _make_ready(self) -> None:
        """What a cloud would do: give the node its address, and take the taint of a new node away."""
        path = f"/api/v1/nodes/{NODE}"
        wait_until(lambda: isinstance(self.call("GET", path), dict), lambda: self.log("kubelet"), START_SECONDS)
        address = {"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}}
        self.call("PATCH", f"{path}/status", address)
        self.call("PATCH", path, {"spec": {"taints": None}})
        wait_until(self.is_node_ready, lambda: f"{self.call('GET', path)} {self.log('kubelet')}", START_SECONDS)

    def is_node_ready(self) -> bool:
        """Whether the node is ready, and takes new pods."""
        node = self.call("GET", f"/api/v1/nodes/{NODE}")
        if not isinstance(node, dict):
            return False
        found = {item["type"]: item["status"] for item in node["status"].get("conditions", ())}
        return found.get("Ready") == "True" and not node["spec"].get("taints")


@contextlib.contextmanager
def kubernetes_cluster() -> Iterator[KubernetesCluster]:
    """A running cluster; all of it is gone afterwards, also after a failure."""
    programs = find_or_build()
    base = Path(tempfile.mkdtemp(prefix="streamstate-kube-", dir="/tmp"))
    cluster = KubernetesCluster(base, programs)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


def client_of(url: str, authority: Path, token: str) -> Any:
    """A client of the official package."""
    configuration = kubernetes.client.Configuration()
    configuration.host, configuration.ssl_ca_cert = url, str(authority)
    configuration.api_key = {"authorization": f"Bearer {token}"}
    return kubernetes.client.ApiClient(configuration)


def asked(
    client: Any,
    method: str,
    path: str,
    body: object = None,
    content: str = "application/merge-patch+json",
    *,
    raw: bool = False,
) -> Any:
    """The JSON of the answer, or its status where it is no success."""
    headers: dict[str, str] = {"Content-Type": content if method == "PATCH" else "application/json"}
    client.update_params_for_auth(headers, [], ["BearerToken"])
    answer = client.rest_client.pool_manager.request(
        method,
        f"{client.configuration.host}{path}",
        headers=headers,
        body=None if body is None else json.dumps(body).encode(),
        timeout=20.0,
        retries=False,
    )
    if not 200 <= answer.status <= 299:
        return answer.status
    return answer.data if raw else json.loads(answer.data or b"{}")


def machine_template(
    more: Mapping[str, Any] | None = None, variables: Mapping[str, str] | None = None, folders: Iterable[Path] = ()
) -> str:
    """The YAML of a pod that has this machine's Python, Java, test folders and these ones, and its network."""
    places = {"/usr", "/etc", "/tmp", sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])}
    places |= {str(folder) for folder in folders}
    mounts = sorted(
        place for place in places if not any(place != other and place.startswith(f"{other}/") for other in places)
    )
    names = {place: f"machine-{number}" for number, place in enumerate(mounts)}
    spec: dict[str, Any] = {
        "hostNetwork": True,
        "containers": [
            {
                "name": "driver",
                "env": [{"name": name, "value": value} for name, value in (variables or {}).items()],
                "volumeMounts": [{"name": name, "mountPath": place} for place, name in names.items()],
            }
        ],
        "volumes": [{"name": name, "hostPath": {"path": place}} for place, name in names.items()],
        **(more or {}),
    }
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": spec})


def until(clock_seconds: float, is_so: Callable[[], bool]) -> bool:
    """Whether it became so in time; a wait of a test, not a measurement."""
    end = time.monotonic() + clock_seconds  # noqa: TID251 - a real cluster lives in real time
    while not is_so():
        if time.monotonic() > end:  # noqa: TID251
            return False
        time.sleep(0.2)  # noqa: TID251
    return True


def _kubeconfig(url: str, authority: Path, user: str, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
    }


def _image(tag: str, files: Mapping[str, bytes], entrypoint: list[str]) -> bytes:
    """An image of one layer, as ``docker save`` writes it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name, target in _LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name, body in files.items():
            _add(archive, name, body, 0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar"]}]).encode()
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for path, body in ((name, config), (f"{digest}/layer.tar", layer.getvalue()), ("manifest.json", manifest)):
            _add(archive, path, body, 0o644)
    return whole.getvalue()


def _add(archive: tarfile.TarFile, name: str, body: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(body), mode
    archive.addfile(entry, io.BytesIO(body))


def _shims(base: Path) -> list[int]:
    """The processes between containerd and the containers of this cluster."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"containerd-shim-runc-v2") and str(base).encode() in b" ".join(words):
                found.append(int(path.parent.name))
    return found


def _end_tree(pid: int) -> None:
    """End a shim's containers, then the shim: killed first, it would leave them to init."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            os.kill(int(child), signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


# What the entry point of Spark's images does for executors, and for drivers in cluster mode; pip's Spark has none.
_ENTRYPOINT = """#!/bin/bash
if [ "$1" = driver ]; then
  exec "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \\
    --deploy-mode client "${@:2}"
fi
readarray -t options < <(env | grep SPARK_JAVA_OPT_ | sort -t_ -k4 -n | sed 's/[^=]*=//')
exec java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_HOME/jars/*" \\
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url "$SPARK_DRIVER_URL" \\
  --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \\
  --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \\
  --podName "$SPARK_EXECUTOR_POD_NAME"
"""
# Every part of the cluster is the administrator; the others are drivers, and what asks about them.
_AUDIT = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: None, users: [admin, "system:apiserver"]}
  - {level: Metadata}
"""
_CONTAINERD = """
version = 2
root = "{base}/containerd/root"
state = "{base}/containerd/state"
[grpc]
  address = "{base}/containerd.sock"
[ttrpc]
  address = "{base}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  stream_server_address = "127.0.0.1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{base}/cni"
    bin_dir = "{base}/cni"
"""
# cgroupsPerQOS and enforceNodeAllocatable: the machine may be a container itself, whose cgroups are not ours.
_KUBELET = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: {port}
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
healthzPort: {health}
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
cgroupsPerQOS: false
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix://{base}/containerd.sock
podLogsDir: {base}/kubelet/podlogs
resolvConf: ""
makeIPTablesUtilChains: false
nodeStatusUpdateFrequency: 3s
imageMinimumGCAge: 24h
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: "100Mi"}}
localStorageCapacityIsolation: false
"""
