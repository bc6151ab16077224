"""Foreign files become datasets where they lie."""
