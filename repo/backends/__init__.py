"""Where bytes lie: one protocol, one module for each kind of store."""
