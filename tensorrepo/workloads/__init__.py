"""Published workloads of trainings and checkpoints, emulated against a store."""
