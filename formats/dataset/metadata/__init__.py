"""Metadata: root, leaves, page indexes, patches, deletions and row ids of a dataset."""
