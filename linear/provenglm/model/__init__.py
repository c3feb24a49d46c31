"""The objective: losses, penalties, coordinates, and samples of the rows."""
