"""Report of a commit: one self-contained page."""
