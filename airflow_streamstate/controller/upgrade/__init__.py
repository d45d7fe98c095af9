"""Upgrades and rollbacks: one state machine that records each step before it acts (Law 1)."""
