"""Loading: runs of pages brought to memory ahead of their use, and verified."""
