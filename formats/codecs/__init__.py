"""Pure byte codecs for the buffers of pages and packs."""
