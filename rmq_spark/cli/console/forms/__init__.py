"""Forms of the console that send messages, and create, alter and delete topics."""
