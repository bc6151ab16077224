"""Versions of a dataset: comparison and three-way merge. Touches no storage."""
