"""DQL, ModelHub's query language: statements, grammar, and conditions asked of the catalog."""
