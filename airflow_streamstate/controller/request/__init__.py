"""What is asked for, checked before anything is touched: requests, the version wanted, its place, its secrets."""
