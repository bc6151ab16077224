"""Foreign formats: importers and exporters of datasets and models."""
