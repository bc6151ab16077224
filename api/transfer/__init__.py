"""A server URL as a repository URL: values down, objects up, and the append."""
