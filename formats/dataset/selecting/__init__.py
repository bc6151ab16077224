"""Row selection: conditions, expressions, page pruning, ids and keys. Touches no storage."""
