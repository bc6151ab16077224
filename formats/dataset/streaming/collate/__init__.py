"""Collation: rows gathered, decoded, transformed and handed over as batches."""
