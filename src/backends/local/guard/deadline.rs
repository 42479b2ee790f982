//! When a guarded attempt must be told, and when it must be gone. Pure: time comes in.

use crate::base::{Instant, Span};

/// The end that a contact sets: it moves forward with renewals, never back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    grace: Span,
    notice: Span,
    renewed_at: Instant,
}

impl Deadline {
    /// Begins with a renewal that was counted. `notice` is the time that the job should get before it is
    /// killed; it gets a quarter of the grace or `notice`, whichever is more, but at most half of the grace.
    pub fn new(grace: Span, notice: Span, renewed_at: Instant) -> Self {
        Self { grace, notice, renewed_at }
    }

    /// A renewal of the binding was counted. One from the future is not of this clock, and ignored.
    pub fn renewed(&mut self, sent_at: Instant, now: Instant) {
        if sent_at <= now {
            self.renewed_at = self.renewed_at.max(sent_at);
        }
    }

    /// From here on others may believe that it has stopped.
    pub fn end(&self) -> Instant {
        self.renewed_at + self.grace
    }

    /// The kill comes so long before the end that it is over by then: a tenth of the grace, 100 ms to 5 s.
    pub fn kill_at(&self) -> Instant {
        let margin = self.grace.scale(1, 10).clamp(Span::millis(100), Span::secs(5));
        self.end() - margin.min(self.grace)
    }

    /// The notice (SIGTERM).
    pub fn notice_at(&self) -> Instant {
        let before = self.notice.max(self.grace.scale(1, 4)).min(self.grace.scale(1, 2));
        (self.end() - before).min(self.kill_at())
    }

    /// How often to look for a renewal, beside when it counts: a binding that is replaced takes the renewals
    /// of the old one that were not seen with it.
    pub fn look_every(&self) -> Span {
        self.grace.scale(1, 10).clamp(Span::millis(20), Span::secs(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: fn(u64) -> Instant = |s| Instant(s * 1_000_000);

    #[test]
    fn notice_then_kill_then_end() {
        let d = Deadline::new(Span::secs(120), Span::secs(10), T(1_000));
        assert_eq!((d.notice_at(), d.kill_at(), d.end()), (T(1_090), T(1_115), T(1_120)));
        for grace in [0, 1, 50_000, 100_000, 150_000, 1_000_000, 3_600_000_000] {
            for notice in [0, 1_000_000, 86_400_000_000] {
                let d = Deadline::new(Span(grace), Span(notice), T(1_000));
                assert!(d.notice_at() <= d.kill_at() && d.kill_at() <= d.end(), "{grace} {notice}");
                assert!(grace == 0 || d.kill_at() < d.end(), "strictly before: {grace}");
                assert!(d.end().since(d.notice_at()).0 <= (grace / 2).max(100_000), "{grace} {notice}");
            }
        }
    }

    #[test]
    fn it_never_moves_back_nor_beyond_now() {
        let mut d = Deadline::new(Span::secs(10), Span::ZERO, T(100));
        d.renewed(T(105), T(106));
        assert_eq!(d.end(), T(115));
        d.renewed(T(101), T(107));
        assert_eq!(d.end(), T(115));
        d.renewed(T(999), T(108));
        assert_eq!(d.end(), T(115));
    }
}
