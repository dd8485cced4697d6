"""Requests to brokers and name servers, a method each: typed headers in, values or errors out.

They use `connections`, and know neither the instance that shares these nor who asks.
"""
