"""Drivers as processes: launched with their secrets, kept warm, and proven to have ended."""
