"""Retention: prune snapshots and leftovers, pin snapshots, retire streams."""
