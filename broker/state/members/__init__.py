"""Members of groups: producers, consumers, their limits and locks."""
