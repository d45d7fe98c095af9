"""Rehearsals of a change: its plans compared with the running ones, and the new version run on a fork of the state."""
