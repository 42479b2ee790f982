//! Words every layer shares: identifiers, time, units, seeded randomness, bounded collections.

pub mod bounded;
pub mod ids;
pub mod rng;
pub mod secrets;
pub mod text;
pub mod time;
pub mod units;
#[cfg(test)]
pub mod work;

pub use bounded::{BoundedVec, Full};
pub use ids::{
    ContactId, Epoch, Home, IdError, IncidentId, JobId, KeyId, LedgerId, MeshId, PeerName, SpanId, StoreId,
    TraceId,
};
pub use rng::Rng;
pub use time::{Instant, Span, WallTime};
pub use units::{Bytes, MilliCpu};
