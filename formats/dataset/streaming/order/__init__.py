"""Orders and schedules: which row comes when, by seed and epoch alone. Touches no storage."""
