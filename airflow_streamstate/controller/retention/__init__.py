"""What is kept of a stream and what goes: snapshots by count and age, what deployments left, whole streams."""
