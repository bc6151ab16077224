"""How the changes of two sides are joined."""
