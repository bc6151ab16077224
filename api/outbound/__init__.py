"""All that the service itself asks of others: one client with pinned addresses, and webhooks."""
