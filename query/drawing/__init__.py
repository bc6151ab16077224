"""Drawings as SVG and HTML, for reports and web pages: charts, profiles of columns, lineage."""
