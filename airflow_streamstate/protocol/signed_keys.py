"""The keys under which controllers alone write, as patterns: what is signed, and what a bucket lets no driver write.

A ``*`` stands for one part of a key. ``tests/unit/protocol/test_signed_keys.py`` holds them to ``layout``.
"""

from __future__ import annotations

import re

_RUNS = ("deployments", "scratch", "upgrades")
BY_CONTROLLERS: tuple[tuple[str, str], ...] = (
    ("HomeRecord", "home.json"),
    ("StreamRegister", "*/stream.json"),
    ("AlertRegister", "*/alerts.json"),
    ("Adoption", "*/adoption.json"),
    ("SnapshotPlace", "*/places/*.json"),
    ("RequestRecord", "*/idempotency/*.json"),
    *(("DeploymentSpec", f"*/{room}/*/spec.json") for room in _RUNS),
    *(("LaunchRecord", f"*/{room}/*/launches/*.json") for room in ("deployments", "scratch")),
    ("ScratchRun", "*/scratch/*/run.json"),
    ("Handover", "*/scratch/*/handover.json"),
    ("Upgrade", "*/upgrades/*/upgrade.json"),
    ("UpgradeStep", "*/upgrades/*/steps/*.json"),
    ("UpgradeLease", "*/upgrades/*/lease.json"),
    ("Approval", "*/upgrades/*/approval.json"),
    ("Cancellation", "*/upgrades/*/cancellation.json"),
)
"""The kind of each record that controllers alone write, and where it lies."""
BY_DRIVERS: tuple[tuple[str, str], ...] = tuple(
    ("FoundModule", f"*/{room}/*/modules/*.json") for room in ("deployments", "scratch")
)
"""What a driver writes, and a controller signs once it or a person has seen the file."""


def signed_kind(key: str) -> str | None:
    """The kind of the signed record that lies under this key; None for any other key."""
    return next((kind for kind, pattern in _PATTERNS if pattern.fullmatch(key)), None)


def driver_may_write(key: str) -> bool:
    """Whether a driver of the key's stream ever writes, replaces or deletes this key."""
    return not any(pattern.fullmatch(key) for kind, pattern in _PATTERNS if kind != "FoundModule")


def denied_to_drivers(stream_id: str) -> list[str]:
    """The keys of a stream that its drivers may read and not write, as patterns of a store's rights."""
    return [pattern.replace("*", stream_id, 1) for _, pattern in BY_CONTROLLERS if pattern.startswith("*/")]


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, pattern.split("*"))))


_PATTERNS = tuple((kind, _compiled(pattern)) for kind, pattern in (*BY_CONTROLLERS, *BY_DRIVERS))
