"""Supervised restart: what a stream's policy asks for (pure), the act, and the process that watches a home."""
