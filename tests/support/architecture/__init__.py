"""Sources, rules and figures of the project itself."""
