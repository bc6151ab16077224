"""Exact search: rows nearest to a vector, rows that fit words, without an index."""
