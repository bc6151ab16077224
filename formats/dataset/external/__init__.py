"""External data: linked values and adopted files that stay where they are."""
