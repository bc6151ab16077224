"""Command line of tensorrepo: one module a noun; only `output` prints."""
