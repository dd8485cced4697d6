"""RocketMQ 4.9's access lists: the accounts of plain_acl.yml, and their addresses and rights."""
