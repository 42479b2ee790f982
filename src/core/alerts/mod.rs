//! Alerts and incidents, as pure functions over a peer's view: what is wrong (`observe`), what of it is one incident
//! and since when ([`Book`]), and who tells people of it ([`Line`]). docs/alerts.md says what is promised.
//!
//! Every peer does this for itself from what it sees and hears. Nothing here decides about jobs.

mod book;
mod observe;
mod send;
#[cfg(test)]
mod tests;

pub use book::{Book, Incident, Turn};
pub use observe::{Facts, Seen, TenantUse, Window, of_links, of_members, of_self};
pub use send::{Due, Line, Look, Marks, Silences, order};
