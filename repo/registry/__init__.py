"""Numbered versions and aliases of entries of any kind."""
