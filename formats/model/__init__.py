"""The model format: content-addressed tensors in packs."""
