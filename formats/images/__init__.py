"""Encoded images. Touches no storage."""
