"""What differs between two versions, row by row."""
