"""Sensors: wait for a drain, a snapshot or health, and end when it can no longer come."""
