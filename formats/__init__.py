"""Tensors: dataset pages and manifests, model packs, foreign formats."""
