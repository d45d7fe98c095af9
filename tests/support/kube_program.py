"""The servers of Kubernetes, built once with Go; etcd, containerd and runc from Debian; all kept in the cache."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.go_program import cache_folder

VERSION = "v1.37.2"
STAGING = VERSION.replace("v1", "v0", 1)
DEBIAN = ("etcd-server", "containerd", "runc")
BUILD_SECONDS = 7200

# One program, linked once. The replacements are those of Kubernetes itself, which has its libraries next to it.
_MAIN = """
// The servers of Kubernetes in one program: the first argument names the one that runs.
package main

import (
	"context"
	"os"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	servers := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": manager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	os.Exit(cli.Run(servers[name]()))
}
"""
_PAUSE = """
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
"""


@dataclass(frozen=True)
class Programs:
    """What a cluster is made of: paths of programs."""

    kube: Path
    pause: Path
    debian: Path

    def of_debian(self, name: str) -> str:
        """The path of one of Debian's programs."""
        return str(
            next(
                self.debian / folder / name
                for folder in ("usr/bin", "usr/sbin")
                if (self.debian / folder / name).exists()
            )
        )


def lacks() -> str:
    """What this machine lacks, as one sentence; "" for nothing."""
    if os.geteuid() != 0:
        return "a cluster of Kubernetes is started as root"
    for name, what in (("go", "Go"), ("apt-get", "Debian's apt-get"), ("dpkg-deb", "Debian's dpkg-deb")):
        if shutil.which(name) is None:
            return f"a cluster of Kubernetes needs {what}"
    return ""


def find_or_build() -> Programs:
    """The programs, made if they are not there yet, which takes a quarter of an hour on two idle cores.

    Raises:
        RuntimeError: a build or a download did not succeed: a run must not quietly test less.
    """
    folder = cache_folder() / f"kubernetes-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    found = Programs(folder / "kube", folder / "pause", folder / "debian")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once build once
        if not found.debian.is_dir():
            _unpack_debian(folder, found.debian)
        if not found.pause.is_file():
            _build(folder / "pause-module", "module airflow-streamstate/pause\n\ngo 1.26.0\n", _PAUSE, found.pause)
        if not found.kube.is_file():
            _build(folder / "kube-module", _go_mod(), _MAIN, found.kube)
    return found


def _go_mod() -> str:
    told = _run(["go", "mod", "download", "-json", f"k8s.io/kubernetes@{VERSION}"])
    own = Path(re.search(r'"GoMod": "(.*)"', told)[1]).read_text()  # type: ignore[index]
    libraries = re.findall(r"^\t(\S+) => \./staging", own, re.MULTILINE)
    replaced = "".join(f"\t{name} => {name} {STAGING}\n" for name in libraries)
    head = "module airflow-streamstate/kube\n\ngo 1.26.0\n\ngodebug default=go1.26\n"
    return f"{head}\nrequire k8s.io/kubernetes {VERSION}\n\nreplace (\n{replaced})\n"


def _build(folder: Path, go_mod: str, main: str, program: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text(go_mod)
    (folder / "main.go").write_text(main)
    made = folder / program.name
    _run(["go", "mod", "tidy"], folder)
    _run(["go", "build", "-ldflags", "-s -w", "-o", str(made), "."], folder)
    made.replace(program)


def _unpack_debian(folder: Path, target: Path) -> None:
    packages, made = folder / "packages", folder / "unpacked"
    shutil.rmtree(packages, ignore_errors=True)
    packages.mkdir()
    _run(["apt-get", "download", *DEBIAN], packages)
    for package in packages.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(made)])
    made.replace(target)


def _run(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder or "/",
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])} failed: {done.stderr[-2000:]}")
    return done.stdout
