"""Order, plan and loading of shuffled batches."""
