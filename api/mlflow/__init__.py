"""What the clients of MLflow ask: its REST contract, answered by the repository of the URL."""
