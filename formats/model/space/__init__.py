"""What models take on disk, and which are alike."""
