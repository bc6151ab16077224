"""Schema: column types, values in memory, and their forms in Arrow, numpy and JSON.

Touches no storage.
"""
