//! Several gateways as one: the Redis that they share.

mod redis_client;
