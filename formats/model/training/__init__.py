"""What a running training hands over to be stored."""
