"""Drivers as processes: launched with their secrets, or taken over from a rehearsal."""
