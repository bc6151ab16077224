"""Plans of streams: which pages are read, and for which rows. Touches no storage."""
