"""Published tables, recorded runs and the leaderboard made of them."""
