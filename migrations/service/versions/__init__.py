"""One module for each revision, self-contained: what it did stays done that way."""
