"""Changes of rows that are stored."""
