"""What changes a repository: refs, transactions, merges, and the fence of collections."""
