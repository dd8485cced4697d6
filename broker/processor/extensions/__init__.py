"""Extensions of the protocol: their negotiation, and staged batches."""
