"""Revisions of the service's database."""
