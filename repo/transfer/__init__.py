"""Transfer between repositories: clones, fetches, pushes, mirrors, bundles and promotions."""
