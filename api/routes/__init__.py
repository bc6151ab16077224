"""Routes: parse, one call, answer. One module a noun."""
