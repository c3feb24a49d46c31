"""What is done otherwise where most features are 0."""
