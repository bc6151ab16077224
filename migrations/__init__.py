"""Revisions of the catalog's tables."""
