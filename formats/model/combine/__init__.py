"""Models made of models: blended, merged three ways, built anew."""
