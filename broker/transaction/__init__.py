"""Transactions: half messages wait in a system topic until their producer commits or rolls back."""
