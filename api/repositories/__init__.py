"""Repositories that the service serves: their directory, and how each is opened."""
