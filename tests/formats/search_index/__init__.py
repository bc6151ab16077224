"""Tests of search indexes."""
