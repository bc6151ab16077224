"""SQL over everything committed: the catalog, lineage, DuckDB over columns."""
