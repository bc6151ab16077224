"""Python objects as rows: data frames, Arrow streams, mappings of columns, iterables of rows."""
