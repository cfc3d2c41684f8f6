"""What the toolkit costs, always as ratios to something else measured in the same run."""
