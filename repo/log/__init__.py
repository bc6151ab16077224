"""The append-only log of a repository, and the state that it adds up to."""
