"""Orders and schedules: which row comes when, as pure functions of seed and epoch.

Touches no storage.
"""
