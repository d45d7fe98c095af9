"""Watching a stream: what it is said to be, waiting until it is so, and what is marked as well on the way."""
