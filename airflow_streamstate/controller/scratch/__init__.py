"""Scratch runs: rehearsals, replays and readings of state, each by a driver alongside a stream."""
