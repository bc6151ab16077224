"""Mixes: several datasets streamed as one. Touches no storage."""
