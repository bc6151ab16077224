"""DQL, ModelHub's query language: statements, their grammar, and conditions asked of the catalog."""
