"""Dead letters: what groups gave up on, what waits behind it, and what is to become of them.

Consumers write them and work them off; here they are read, and marked, changed or removed. What is
where is said in docs/reference/dead-letters.md.
"""
