"""Reading of tensors: planned, fetched, decoded, verified."""
