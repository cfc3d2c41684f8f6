"""Where events go: streams in Redis, with the lane's state beside them."""
