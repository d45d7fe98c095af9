"""From a request to a deployment that runs: deploy, resume, skip; who may take over, and from where."""
