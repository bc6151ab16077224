"""Runs of a training: parameters, inputs, outputs, metrics."""
