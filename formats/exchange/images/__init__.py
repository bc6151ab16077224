"""Images in folders, with labels, boxes and captions."""
