"""Orders to a deployment: stop, drain, cancel, snapshot, forced stop; and what came of each."""
