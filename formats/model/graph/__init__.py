"""Architecture graphs of models: what they are, where they come from, how they compare."""
