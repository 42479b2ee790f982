//! The clock that runs through suspend, and the boot that it belongs to.
//!
//! For tests alone: a process whose environment has [`TEST_CLOCK`] reads a rate and a step of the wall clock from
//! the file named there (a time namespace moves a boot clock only at a process's start, and by an offset). A peer
//! passes the name on to its guards, so that a cluster has one clock; never to its jobs.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::base::{Instant, Span, WallTime};

/// Names the file of a test clock.
pub const TEST_CLOCK: &str = "STARLING_TEST_CLOCK";
/// Rates that a test clock may have.
const RATES: std::ops::RangeInclusive<i64> = -999_999..=10_000_000;
/// The file is read again when what is known of it is older.
const READ_EVERY: Span = Span::millis(10);

/// Now on CLOCK_BOOTTIME: the same in every process of this machine, until it is started again.
pub fn now() -> Instant {
    let true_now = machine();
    test().map_or(true_now, |clock| clock.shown(true_now))
}

/// The machine's own clock shows this when `now` shows `at`: for timers of the system.
pub fn machine_time(at: Instant) -> Instant {
    test().map_or(at, |clock| clock.read(machine()).machine_time(at))
}

/// For people.
#[allow(clippy::disallowed_methods, reason = "the guard is a process of its own, outside the core")]
pub fn wall() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    WallTime(test().map_or(ms, |clock| ms.saturating_add_signed(clock.read(machine()).wall_ms)))
}

/// This process does not go by the machine's clock.
pub fn is_test() -> bool {
    test().is_some()
}

/// Names this start of the machine; an `Instant` of another one means nothing.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// CLOCK_BOOTTIME itself, whatever the test clock says.
pub fn machine() -> Instant {
    let t = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    let micros = u64::try_from(t.tv_nsec).unwrap_or(0) / 1_000;
    Instant(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

/// What a test clock shows: from a moment on the boot clock runs at another rate; the wall clock is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestClock {
    /// At this time of the machine,
    pub since: Instant,
    /// it showed this,
    pub shown: Instant,
    /// and runs so many millionths faster since.
    pub rate_ppm: i64,
    /// The wall clock is ahead by this.
    pub wall_ms: i64,
}

impl TestClock {
    /// Shows what the machine's clock does.
    pub const TRUE: Self = Self { since: Instant(0), shown: Instant(0), rate_ppm: 0, wall_ms: 0 };

    /// What it shows at a time of the machine.
    pub fn at(&self, machine: Instant) -> Instant {
        let gone = i128::from(machine.0) - i128::from(self.since.0);
        let shown = i128::from(self.shown.0) + gone * i128::from(1_000_000 + self.rate_ppm) / 1_000_000;
        Instant(u64::try_from(shown).unwrap_or(0))
    }

    /// When it shows this, by the machine's clock: not before.
    pub fn machine_time(&self, at: Instant) -> Instant {
        let left = i128::from(at.0) - i128::from(self.shown.0);
        let rate = i128::from(1_000_000 + self.rate_ppm.max(-999_999));
        let machine = i128::from(self.since.0) + (left * 1_000_000).div_euclid(rate) + 1;
        Instant(u64::try_from(machine).unwrap_or(0))
    }

    /// The same clock with another rate from now on; what it shows does not jump.
    pub fn with_rate(&self, machine: Instant, rate_ppm: i64) -> Self {
        Self { since: machine, shown: self.at(machine), rate_ppm, wall_ms: self.wall_ms }
    }

    /// The file's text.
    pub fn text(&self) -> String {
        format!("{} {} {} {}\n", self.since.0, self.shown.0, self.rate_ppm, self.wall_ms)
    }

    /// Reads the file's text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let clock = Self {
            since: Instant(words.next()?.parse().ok()?),
            shown: Instant(words.next()?.parse().ok()?),
            rate_ppm: words.next()?.parse().ok()?,
            wall_ms: words.next()?.parse().ok()?,
        };
        (words.next().is_none() && RATES.contains(&clock.rate_ppm)).then_some(clock)
    }

    /// Writes the file, so that a reader sees all of it or what was there before.
    pub fn write(&self, file: &std::path::Path) -> std::io::Result<()> {
        let fresh = file.with_extension("new");
        std::fs::write(&fresh, self.text())?;
        std::fs::rename(fresh, file)
    }
}

/// The file, and what was last read of it.
struct Test {
    file: PathBuf,
    known: Mutex<Known>,
}

struct Known {
    clock: TestClock,
    read_at: Option<Instant>,
    /// A clock never runs backwards, though a new rate is seen a moment late.
    shown: Instant,
}

impl Test {
    fn lock(&self, machine: Instant) -> std::sync::MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.read_at.is_none_or(|at| machine.since(at) >= READ_EVERY) {
            known.read_at = Some(machine);
            // One that is missing or broken changes nothing.
            let text = std::fs::read_to_string(&self.file).unwrap_or_default();
            known.clock = TestClock::parse(&text).unwrap_or(known.clock);
        }
        known
    }

    fn read(&self, machine: Instant) -> TestClock {
        self.lock(machine).clock
    }

    fn shown(&self, machine: Instant) -> Instant {
        let mut known = self.lock(machine);
        known.shown = known.shown.max(known.clock.at(machine));
        known.shown
    }
}

fn test() -> Option<&'static Test> {
    static TEST: OnceLock<Option<Test>> = OnceLock::new();
    let make = || {
        // Empty is none: so a guard's container is kept from what its image says.
        let file = PathBuf::from(std::env::var_os(TEST_CLOCK).filter(|file| !file.is_empty())?);
        let known = Known { clock: TestClock::TRUE, read_at: None, shown: Instant(0) };
        Some(Test { file, known: Mutex::new(known) })
    };
    TEST.get_or_init(make).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_clock_changes_its_rate_without_a_jump_and_is_read_back() {
        let begun = Instant(5_000_000);
        let slow = TestClock::TRUE.with_rate(begun, -500_000);
        assert_eq!(slow.at(begun), begun);
        assert_eq!(slow.at(Instant(7_000_000)), Instant(6_000_000));
        let fast = TestClock { wall_ms: -3_600_000, ..slow.with_rate(Instant(7_000_000), 10_000) };
        assert_eq!(fast.at(Instant(7_000_000)), Instant(6_000_000));
        assert_eq!(fast.at(Instant(8_000_000)), Instant(7_010_000));
        assert_eq!(TestClock::parse(&fast.text()), Some(fast));
        for wrong in ["", "1 2 3", "1 2 3 4 5", "1 2 x 4", "0 0 -1000000 0", "0 0 9223372036854775807 0"] {
            assert_eq!(TestClock::parse(wrong), None, "{wrong:?}");
        }
        // A timer set by it never fires before it shows that time.
        for clock in [slow, fast, TestClock::TRUE] {
            for at in (6_000_000..9_000_000).step_by(99_991).map(Instant) {
                let fires = clock.machine_time(at);
                assert!(clock.at(fires) >= at && clock.at(fires).since(at) <= Span(3), "{clock:?} {at:?}");
            }
        }
    }
}
