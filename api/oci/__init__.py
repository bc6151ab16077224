"""Clients of OCI registries: models pulled as artifacts. Routes, and what they call."""
