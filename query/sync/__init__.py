"""How the catalog is made equal to the repository: what to add, what to take away."""
