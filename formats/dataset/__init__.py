"""The dataset format: columnar tensor pages with random-access indexes."""
