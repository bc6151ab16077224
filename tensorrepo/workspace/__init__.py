"""Workspace: a folder on a repository, what is staged in it, and its commands."""
