"""Kernels in C, each beside a twin in numpy or Python with identical results.

Touches no storage.
"""
