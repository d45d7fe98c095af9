"""What the stores and the launcher say of a deployment, and what that means: read once, then pure."""
