"""Limits in this process: while the server is away, and for tests."""
