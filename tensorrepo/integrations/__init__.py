"""Plug-ins of libraries that train: each module is imported beside the library that it is for."""
