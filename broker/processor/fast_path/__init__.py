"""What fast paths of sends and pulls share: header and response templates, caches by client."""
