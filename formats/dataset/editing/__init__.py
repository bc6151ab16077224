"""How some rows of a dataset get other values."""
