"""Root, leaves, page indexes, and what changes leave beside them."""
