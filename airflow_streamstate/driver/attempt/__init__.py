"""One attempt of a deployment: its latch, queries, sources, events and snapshots."""
