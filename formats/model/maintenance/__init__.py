"""Maintenance of stored models: usage, similarity, repacking."""
