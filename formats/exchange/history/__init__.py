"""Histories of other tools: what was committed there, for import."""
