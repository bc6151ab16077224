"""Reading of pages and rows, proved."""
