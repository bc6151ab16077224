"""The files of a repository for whoever reads by fsspec, or by a mounted folder."""
