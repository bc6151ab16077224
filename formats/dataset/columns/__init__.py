"""What columns hold: types, schemas, and values in memory."""
