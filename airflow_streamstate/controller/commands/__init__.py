"""Orders to a deployment that runs: stop, drain, snapshot, kill; and what came of each."""
