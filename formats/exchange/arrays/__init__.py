"""Arrays of numbers: npy, npz, IDX."""
