"""Stored layouts of models: manifest, placement, packs, frames. Touches no storage."""
