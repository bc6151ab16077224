"""Live metrics: what trainings log is kept by the service until the run is written anew."""
