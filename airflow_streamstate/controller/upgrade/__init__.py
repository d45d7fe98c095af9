"""Upgrades and rollbacks as one verb: a state machine whose every step is recorded before it acts."""
