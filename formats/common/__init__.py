"""What several formats share. Touches no storage."""
