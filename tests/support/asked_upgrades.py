"""Records of upgrades and rollbacks with other terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_streamstate.protocol.terms.order import RollbackTerms, UpgradeTerms
from airflow_streamstate.protocol.upgrades import Upgrade


def of_kind(upgrade: Upgrade, asked: str) -> Upgrade:
    """The same record of an upgrade or of a rollback, with the usual terms."""
    is_upgrade = asked == "upgrade"
    return replace(
        upgrade,
        upgrade_terms=UpgradeTerms() if is_upgrade else None,
        rollback_terms=None if is_upgrade else RollbackTerms(),
    )


def with_terms(upgrade: Upgrade, **terms: Any) -> Upgrade:
    """The same upgrade with these of its terms changed."""
    return replace(upgrade, upgrade_terms=replace(upgrade.terms, **terms))


def on_return(upgrade: Upgrade, **terms: Any) -> Upgrade:
    """As a rollback with these terms."""
    return replace(upgrade, upgrade_terms=None, rollback_terms=RollbackTerms(**terms))
