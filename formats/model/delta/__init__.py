"""Codecs of frames, alone or against frames of a base. Touches no storage."""
