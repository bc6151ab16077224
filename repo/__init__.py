"""Bytes: objects, links, commits, refs and the log. Knows nothing of tensors."""
