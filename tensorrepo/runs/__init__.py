"""Runs of the SDK: what a training read, made and logged."""
