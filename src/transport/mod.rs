//! Wire messages, codec, QUIC, TLS.
