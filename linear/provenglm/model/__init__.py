"""What is minimised: losses, penalties, coordinates, and samples of the rows."""
