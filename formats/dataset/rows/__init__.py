"""Reading pages and rows, proved."""
