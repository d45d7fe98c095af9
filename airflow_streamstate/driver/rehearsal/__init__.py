"""A rehearsal: one pass of the new script in which each start is tried on a fork of the state, and none is made."""
