"""Deterministic simulation of clients over a store that fails."""
