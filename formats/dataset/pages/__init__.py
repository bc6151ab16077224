"""Pages: bytes of consecutive rows of one column, and tiles of large rows. Touches no storage."""
