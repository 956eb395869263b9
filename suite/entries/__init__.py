"""Results as entries of the leaderboard: reading, checking, accepting, doubting and exporting them."""
