"""Operators: one order to a stream each, thin over the hook. ``base`` has what all of them do the same way."""
