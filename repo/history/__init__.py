"""Commits and trees of paths."""
