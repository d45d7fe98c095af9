"""The one trigger, and what its events say."""
