"""Search indexes: entries that know where rows of one column lie, kept beside its dataset."""
