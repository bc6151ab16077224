"""Folders of images, with labels, boxes and captions."""
