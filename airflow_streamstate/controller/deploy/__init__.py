"""From a request to a deployment that runs: deploy, resume, skip, and the takeover from the predecessor."""
