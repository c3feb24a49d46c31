"""What a run is: its position, its history, the figure that is watched, one batch."""
