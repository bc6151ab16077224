"""Code in C for what numpy cannot do at once, each beside a twin in numpy that does the same."""
