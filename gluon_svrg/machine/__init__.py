"""What a run runs on: processors, threads, versions."""
