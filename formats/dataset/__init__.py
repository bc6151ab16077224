"""Datasets: columnar tensor pages with random access, versioned row by row."""
