"""Codecs of frames, alone or against frames of a base, and the choice of bases.

Touches no storage.
"""
