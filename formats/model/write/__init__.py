"""Writing of models: tensors become frames, frames packs."""
