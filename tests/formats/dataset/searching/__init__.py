"""Row selection."""
