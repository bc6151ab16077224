"""Model handles of the SDK: reading, checkpoints."""
