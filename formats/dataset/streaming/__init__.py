"""Streams of a dataset: batches for training, shuffled, prefetched, resumable."""
