"""Mixes: several datasets streamed as one."""
