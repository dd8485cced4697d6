"""The markup of the console: escaped HTML, page components, charts, and message bodies."""
