"""Architecture graphs of models: traced, read, derived, compared."""
