"""State that outlives the broker: topics, groups, offsets, configurations."""
