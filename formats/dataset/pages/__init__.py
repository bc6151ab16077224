"""The bytes of pages, tiles and chunks."""
