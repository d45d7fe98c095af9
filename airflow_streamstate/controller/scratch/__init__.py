"""Scratch runs: rehearsals, replays and readings of state, each by a driver beside a stream."""
