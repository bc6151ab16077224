"""Models stored anew: smaller, and no slower to read than was asked for."""
