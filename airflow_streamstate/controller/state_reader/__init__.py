"""Reading the state in snapshots: which one, on what fork, by what driver, and what is told of it."""
