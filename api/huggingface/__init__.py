"""Clients of Hugging Face: repositories as their libraries see them. Routes, and what they call."""
