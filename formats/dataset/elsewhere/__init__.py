"""Links and adopted files: data that stays where it is."""
