"""Comparison of trees, entries and what they hold: what `diff` shows, and the service."""
