"""What the working commands do: one module for each verb of a workspace."""
