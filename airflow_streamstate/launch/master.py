"""What a master URL says about where things run, and whether a standalone master answers.

Spark itself asks a standalone master that is down for a minute and a half, and then only logs it. Drivers in client
mode run on this machine and reach only what can be reached from here.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path

from airflow_streamstate.errors import InvalidRequestError, UnavailableError

SETTING = "spark.streamstate.master.check"
"""``connect`` (the default), or ``none`` where only the driver's command reaches the master."""
CONNECT_SECONDS = 3.0

_MASTER = re.compile(
    r"local|local\[(?:\*|0*[1-9][0-9]*)(?:\s*,\s*[0-9]+)?\]|local-cluster\[\s*[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\s*\]"
    r"|spark://.+|k8s://.+|yarn"
)
_STANDALONE = "spark://"
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\[\]:/@]+):(?P<port>[0-9]{1,5})")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
# As the kernel names them; a fuse mount is as a rule of another machine, too.
_SHARED_FILE_SYSTEM = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fhgfs|fuse\..*|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|panfs|smb3|smbfs|virtiofs|wekafs"
)
_MOUNTS = Path("/proc/self/mounts")


def check_master(master: str) -> None:
    """Check that Spark knows this kind of master; Spark would say so only after its JVM has started.

    Raises:
        InvalidRequestError: it does not.
    """
    if not _MASTER.fullmatch(master) or (master.startswith(_STANDALONE) and not addresses_of(master)):
        raise InvalidRequestError(
            "this is not a master that Spark knows",
            master=master,
            next_step="Use local[N], spark://HOST:PORT, k8s://…, or yarn.",
        )


def addresses_of(master: str) -> tuple[tuple[str, int], ...]:
    """Host and port of each master of a standalone cluster, which may have several; () for any other kind."""
    if not master.startswith(_STANDALONE):
        return ()
    found = [_ADDRESS.fullmatch(part.strip()) for part in master.removeprefix(_STANDALONE).split(",")]
    return tuple((match["host"].strip("[]"), int(match["port"])) for match in found if match)


def is_in_process(master: str) -> bool:
    """Whether the executors are the driver's own process."""
    return master.startswith("local") and not master.startswith("local-cluster")


def is_on_this_machine(master: str) -> bool:
    """Whether the whole job runs on this machine: in one process, or on a cluster on loopback."""
    addresses = addresses_of(master)
    return master.startswith("local") or bool(addresses and all(_LOOPBACK.fullmatch(host) for host, _ in addresses))


def check_master_answers(master: str, conf: Mapping[str, str]) -> None:
    """Check that one of the masters of a standalone cluster takes connections; other kinds are not asked.

    Raises:
        InvalidRequestError: the setting has no such value.
        UnavailableError: none does.
    """
    if not is_asked(conf):
        return
    reasons = []
    for host, port in addresses_of(master):
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            return
        except (OSError, OverflowError) as error:
            reasons.append(f"{host}:{port}: {_words(error)}")
    if reasons:
        raise UnavailableError(
            "the master of the cluster does not answer",
            master=master,
            reason="; ".join(reasons),
            next_step="Start it or correct its address, then do the same again; where only the driver reaches it, set"
            f" {SETTING}=none.",
        )


def is_asked(conf: Mapping[str, str]) -> bool:
    """Whether the master is asked before a driver is started.

    Raises:
        InvalidRequestError: the setting has no such value.
    """
    asked = conf.get(SETTING, "connect").strip()
    if asked not in ("connect", "none"):
        raise InvalidRequestError(
            "this setting has no such value", setting=SETTING, value=asked, next_step="Set it to connect or none."
        )
    return asked == "connect"


def own_disk_note(master: str, folder: Path, mounts: Path = _MOUNTS) -> str:
    """One sentence where executors of such a master may keep state on disks of their own; "" where they cannot.

    Args:
        folder: of the checkpoints; need not exist yet.
        mounts: the list of mounts.
    """
    if is_on_this_machine(master) or _is_shared(folder, mounts):
        return ""
    return (
        f"checkpoints lie on a disk of this machine ({folder}), but executors of {master} may run on others: they would"
        " keep their state there, where no restart and no snapshot finds it. Put checkpoints on S3, or into a folder"
        " that every machine of the cluster mounts at the same path"
    )


def _is_shared(folder: Path, mounts: Path) -> bool:
    try:
        lines = [line.split() for line in mounts.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return False
    place = folder.resolve()
    kinds = {Path(_unescaped(line[1])): line[2] for line in lines if len(line) > 2}
    kind = next((kinds[parent] for parent in (place, *place.parents) if parent in kinds), "")
    return bool(_SHARED_FILE_SYSTEM.fullmatch(kind))


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_SECONDS:g} s"
    if isinstance(error, OverflowError):
        return "no such port"
    return str(getattr(error, "strerror", None) or error).lower()
