"""Entries of a commit as ordinary files, without writing them out.

Names and sizes come of metadata alone; bytes are read, and proved, when they are asked for.
"""
