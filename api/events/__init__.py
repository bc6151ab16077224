"""What happens in repositories, told as it happens: made from the log, streamed to many."""
