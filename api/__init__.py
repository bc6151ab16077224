"""HTTP: the model registry service."""
