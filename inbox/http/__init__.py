"""One effect and one answer for an HTTP request that is sent again."""
