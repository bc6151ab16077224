"""Models made of models: blended, merged three ways, assembled, adapted."""
