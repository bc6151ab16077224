"""Writing of fragments: rows become pages in chunks."""
