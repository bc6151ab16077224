"""Untrusted SQL in a child process with limits."""
