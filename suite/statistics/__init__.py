"""Statistics over seeds: summaries, intervals that survive peeking, leaders and profiles."""
