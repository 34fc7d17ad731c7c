"""Small models with random weights for the sweep `nox -s models`."""
