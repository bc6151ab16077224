"""Who asks, and what they may do: grants, tokens, callers, and the one gate to a repository."""
