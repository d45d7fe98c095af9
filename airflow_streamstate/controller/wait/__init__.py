"""Views of a deployment, and waits for a condition of it."""
