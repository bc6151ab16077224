"""Catalog sync: what to add to the catalog, and what to take away."""
