"""Questions over all commits: catalog, lineage, registry, SQL."""
