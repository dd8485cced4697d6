"""The schemas of source and bodies: columns, Arrow and Avro types, and option bodySchema."""
