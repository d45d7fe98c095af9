"""The trigger, and its events."""
