"""BLAKE3: names of objects and records, and tags of parts of them. Touches no storage."""
