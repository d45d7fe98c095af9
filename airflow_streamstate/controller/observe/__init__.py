"""Observing a deployment: what the stores and the launcher tell of it, and what follows (pure)."""
