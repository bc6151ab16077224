"""Content-addressed objects: their form, where they lie, and caches of them."""
