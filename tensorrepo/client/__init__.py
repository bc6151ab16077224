"""Typed client of a service's API: `from tensorrepo.client.client import Client`."""
