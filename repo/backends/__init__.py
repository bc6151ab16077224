"""Storage backends: one protocol, one module for each kind of store."""
