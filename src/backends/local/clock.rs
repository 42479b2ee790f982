//! The clock that runs through suspend, and the boot that it belongs to.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::base::{Instant, WallTime};

/// Now on CLOCK_BOOTTIME: the same in every process of this machine, until it is started again.
#[allow(clippy::disallowed_methods, reason = "the guard is a process of its own, outside the core")]
pub fn now() -> Instant {
    let t = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    let micros = u64::try_from(t.tv_nsec).unwrap_or(0) / 1_000;
    Instant(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

/// For people.
#[allow(clippy::disallowed_methods, reason = "the guard is a process of its own, outside the core")]
pub fn wall() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Names this start of the machine; an `Instant` of another one means nothing.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
