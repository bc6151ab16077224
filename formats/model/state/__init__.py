"""Training states: state dicts, snapshots, chains of checkpoints. Touches no storage."""
