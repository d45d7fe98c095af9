"""Sensors: wait for what others did or will do, and know when it cannot come any more."""
