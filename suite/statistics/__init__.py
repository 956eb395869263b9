"""Statistics over seeds: summaries, intervals that survive peeking, equivalence, survival, leaders and profiles."""
