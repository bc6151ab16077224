"""Merge requests: proposals to merge a branch, which lie in the repository itself."""
