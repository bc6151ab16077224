"""Orders and schedules: which row comes when, as pure functions of seed and epoch."""
