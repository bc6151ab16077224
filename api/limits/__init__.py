"""Limits: how often, how much and how slowly one caller may ask."""
