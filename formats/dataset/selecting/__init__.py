"""Selection of rows: SQL conditions, expressions, ids, keys and numbers."""
