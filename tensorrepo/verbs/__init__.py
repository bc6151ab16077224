"""Verbs of the SDK and the command line, each written once against a stage."""
