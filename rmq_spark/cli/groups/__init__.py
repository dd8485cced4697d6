"""Commands about consumer groups: lag, members, offsets."""
