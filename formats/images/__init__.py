"""Encoded images."""
