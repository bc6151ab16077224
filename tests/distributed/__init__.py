"""Ranks as real processes: killed, and resumed as another number of them."""
