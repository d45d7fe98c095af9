"""Observing a deployment: what the stores and the launcher report about it, and what follows (pure)."""
