"""Models: content-addressed tensors in packs."""
