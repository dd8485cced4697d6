"""Requests to brokers and name servers, one method each: typed headers in, values or errors out."""
