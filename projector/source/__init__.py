"""Where events come from: the next committed rows of a lane after a position."""
