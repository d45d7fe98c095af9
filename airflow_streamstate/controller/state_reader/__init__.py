"""Reading the state in snapshots, by a driver of its own on a fork."""
