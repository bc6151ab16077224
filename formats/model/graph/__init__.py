"""Architecture graphs of models: traced, read, derived, compared. Touches no storage."""
