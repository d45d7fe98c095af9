"""Alerts about streams: rules over what was seen (pure), the watch of a home, a webhook, and metrics."""
