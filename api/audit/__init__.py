"""The audit log: who did what, as a chain that shows what was dropped or changed."""
