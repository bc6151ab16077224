"""Stored layouts of models: manifest, placement, packs, frames."""
