"""What the service tells its operator: logs and metrics."""
