"""Bytes and history: objects, commits, refs and the log. Knows no tensor and no model."""
