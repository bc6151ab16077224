"""Dataset handles of the SDK: reading, streaming, changing."""
