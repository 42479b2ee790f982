//! Bytes on the wire. The only user of bincode.
