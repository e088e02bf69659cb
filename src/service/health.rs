//! What the prediction path must know of the rest of the process: three atomic words, read without waiting.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};

use super::seed::Seeded;
use crate::types::{State, UnixMs};

/// Stands for "the link to the trainer is up, or there is none to be up".
const IN_STEP: i64 = i64::MAX;

/// Health of the parts behind the serving snapshot.
#[derive(Debug)]
pub(super) struct Health {
    learning_broken: AtomicBool,
    /// Models that are the seed's, one bit each by role and target.
    seeded: AtomicU8,
    /// When the serving snapshot was last known to be the trainer's newest, or [`IN_STEP`].
    in_step_until: AtomicI64,
    stale_after_ms: i64,
}

impl Health {
    /// A healthy process. `stale_after_ms` is how long a follower may be out of step before it says so.
    pub(super) fn new(stale_after_ms: i64) -> Self {
        Health {
            learning_broken: AtomicBool::new(false),
            seeded: AtomicU8::new(0),
            in_step_until: AtomicI64::new(IN_STEP),
            stale_after_ms: stale_after_ms.max(0),
        }
    }

    /// The mildest state that may be said now.
    pub(super) fn at_least(&self, now: UnixMs) -> State {
        if self.learning_broken.load(Ordering::Relaxed) {
            return State::Degraded;
        }
        if self.is_out_of_step(now) { State::Stale } else { State::Ready }
    }

    pub(super) fn is_learning_broken(&self) -> bool {
        self.learning_broken.load(Ordering::Relaxed)
    }

    /// Which models are the seed's.
    pub(super) fn seeded(&self) -> Seeded {
        let bits = self.seeded.load(Ordering::Relaxed);
        std::array::from_fn(|role| std::array::from_fn(|target| bits >> (2 * role + target) & 1 == 1))
    }

    pub(super) fn set_seeded(&self, seeded: Seeded) {
        let bits = seeded.iter().flatten().rev().fold(0, |bits, is| bits << 1 | u8::from(*is));
        self.seeded.store(bits, Ordering::Relaxed);
    }

    /// Whether a follower has been out of step for longer than its grace.
    pub(super) fn is_out_of_step(&self, now: UnixMs) -> bool {
        self.out_of_step_ms(now).is_some_and(|age_ms| age_ms > self.stale_after_ms)
    }

    /// How long ago the serving snapshot was last known to be the trainer's newest; `None` while it is.
    pub(super) fn out_of_step_ms(&self, now: UnixMs) -> Option<i64> {
        match self.in_step_until.load(Ordering::Relaxed) {
            IN_STEP => None,
            since => Some(now.since(UnixMs(since))),
        }
    }

    pub(super) fn set_learning_broken(&self, broken: bool) {
        self.learning_broken.store(broken, Ordering::Relaxed);
    }

    /// The serving snapshot is the trainer's newest.
    pub(super) fn set_in_step(&self) {
        self.in_step_until.store(IN_STEP, Ordering::Relaxed);
    }

    /// Whether it still is the newest is unknown since `since`; an earlier such moment stands.
    pub(super) fn set_out_of_step(&self, since: UnixMs) {
        self.in_step_until.fetch_min(since.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_out_of_step_is_stale_only_after_the_grace_and_recovers() {
        let health = Health::new(5_000);
        assert_eq!(health.at_least(UnixMs(1_000_000)), State::Ready);
        health.set_out_of_step(UnixMs(1_000));
        health.set_out_of_step(UnixMs(4_000));
        assert_eq!(health.at_least(UnixMs(6_000)), State::Ready);
        assert_eq!(health.at_least(UnixMs(6_001)), State::Stale);
        assert_eq!(health.out_of_step_ms(UnixMs(6_001)), Some(5_001));
        health.set_in_step();
        assert_eq!(health.at_least(UnixMs(6_001)), State::Ready);
    }

    #[test]
    fn which_models_are_the_seeds_is_told_as_it_was_said() {
        let health = Health::new(0);
        for seeded in [
            [[false; 2]; 3],
            [[true; 2]; 3],
            [[true, false], [false, true], [false, false]],
            [[false, true], [false, false], [true, false]],
        ] {
            health.set_seeded(seeded);
            assert_eq!(health.seeded(), seeded);
        }
    }

    #[test]
    fn broken_learning_is_worse_than_stale() {
        let health = Health::new(0);
        health.set_out_of_step(UnixMs(0));
        health.set_learning_broken(true);
        assert_eq!(health.at_least(UnixMs(9)), State::Degraded);
        health.set_learning_broken(false);
        assert_eq!(health.at_least(UnixMs(9)), State::Stale);
    }
}
