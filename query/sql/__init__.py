"""SQL by DuckDB over datasets and the catalog."""
