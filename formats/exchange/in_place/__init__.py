"""Foreign files adopted where they lie."""
